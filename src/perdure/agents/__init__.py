"""Agents: the only place that meets Pydantic AI."""

from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed

from perdure.agents._capability import RemoteToolError
from perdure.agents._counters import in_a_row, looping
from perdure.agents._edit import edited
from perdure.agents._faults import describe
from perdure.agents._messages import decode, decode_all, encode, ends_on_response, last_text, start_message
from perdure.agents._registry import Registration
from perdure.agents._session import AgentSession, open_session
from perdure.agents._turn import Answered, Call, Decision, Finished, Host, ModelFailed, Reply, ReplyKind, Result, Session
from perdure.agents._values import Shelf, keep
from perdure.agents._waiter import DECIDING, DurableWaiter, NothingCame

__all__ = [
    "DECIDING",
    "AgentSession",
    "Answered",
    "ApprovalRequired",
    "Call",
    "CallDeferred",
    "Decision",
    "DurableWaiter",
    "Finished",
    "Host",
    "ModelFailed",
    "ModelRetry",
    "NothingCame",
    "Registration",
    "RemoteToolError",
    "Reply",
    "ReplyKind",
    "Result",
    "Session",
    "Shelf",
    "ToolFailed",
    "decode",
    "decode_all",
    "describe",
    "edited",
    "encode",
    "ends_on_response",
    "in_a_row",
    "keep",
    "last_text",
    "looping",
    "open_session",
    "start_message",
]
