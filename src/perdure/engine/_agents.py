"""Agents as a job type of the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Literal

from perdure.agents import DurableWaiter, Registration, Session
from perdure.artifacts import RunArtifacts
from perdure.context import CurrentRun
from perdure.core.errors import ConfigurationError
from perdure.core.limits import EFFECT_GRACE, MODEL_TRIES_MAX
from perdure.effects import HeldEffects
from perdure.engine import _settings
from perdure.engine._attempt import AgentJob
from perdure.engine._execution import Execution
from perdure.engine._policy import Policy, Undeclared, policy_of
from perdure.engine._retention import Retention, read_retention
from perdure.stores import Store

logger = logging.getLogger("perdure")
UNDECLARED: Final = "They are plain: they may run again after a crash. Declare what has side effects with effect(), the rest with plain(), or register with effects='*'."


class AgentType:
    """A registered agent: what it is (`Registration`), and how the engine treats it."""

    def __init__(
        self,
        what: Registration,
        *,
        effects: HeldEffects | Literal["*"] = "ask",
        history: Literal["none", "thread"] = "none",
        limit: int | None = None,
        step_timeout: timedelta | None = None,
        tool_timeout: timedelta | None = None,
        model_tries: int = MODEL_TRIES_MAX,
        effect_grace: timedelta = EFFECT_GRACE,
        retention: Retention | None = None,
        key_retention: timedelta | None = None,
    ) -> None:
        _settings.check_agent(
            what.name, effects=effects, history=history, limit=limit, step_timeout=step_timeout, tool_timeout=tool_timeout,
            model_tries=model_tries,
        )  # fmt: skip
        self.what, self.limit, self.history = what, limit, history
        self.name, self.version, self.budget = what.name, what.version, what.budget
        self.step_timeout, self.tool_timeout = step_timeout, tool_timeout
        self.model_tries, self.effect_grace = model_tries, effect_grace
        self.undeclared: Undeclared = "*" if effects == "*" else "plain"
        self.held_rule: HeldEffects = "ask" if effects == "*" else effects
        self.model_name, self.text_output, self.tools_hash = what.model_name, what.text_output, what.tools_hash
        self.retention, self.key_retention = read_retention(what.name, retention), key_retention
        self._check()

    def _check(self) -> None:
        if self.budget.on_limit == "stop" and not self.text_output:
            raise ConfigurationError(
                f"Agent {self.name!r}: on_limit='stop' completes with the text so far, and this agent's output is not text. Use 'fail' or 'pause'."
            )
        names = self.what.undeclared()
        self._named = set(names)
        if names and self.undeclared == "plain":
            logger.warning("Agent %r: nobody declared %s. %s", self.name, ", ".join(names), UNDECLARED)

    def check(self, payload: Any) -> Any:
        """The payload as JSON, or `InvalidTrigger` with the field that is wrong."""
        return self.what.check(payload)

    def check_model(self) -> None:
        """`ConfigurationError` where this process can't call the model, as far as that is known without a call."""
        self.what.check_model()

    def validated(self, payload: Any) -> Any:
        """The stored payload as the agent's input type."""
        return self.what.validated(payload)

    def parse_output(self, output: Any) -> Any:
        """A stored output as the agent's output type."""
        return self.what.parse_output(output)

    def policy(self, name: str, metadata: Mapping[str, Any]) -> Policy:
        """How a tool is treated. One that nobody declared and that shows itself only now (an MCP server's, a factory's) is named once."""
        policy = policy_of(name, metadata, self.what.tools, self.undeclared)
        if not policy.declared and self.undeclared == "plain" and name not in self._named:
            self._named.add(name)
            logger.warning("Agent %r: nobody declared %s. %s", self.name, name, UNDECLARED)
        return policy

    async def keep(self, value: Any, store: Store) -> Any:
        """A tool's result as it is stored."""
        return await self.what.keep(value, RunArtifacts(store))

    def open(self, execution: Execution) -> AgentJob:
        return AgentJob(execution, self)

    def session(
        self, host: AgentJob, execution: Execution, current: CurrentRun, history: Sequence[Any], *, start: bool, since: int
    ) -> AbstractAsyncContextManager[Session]:
        """The session of one execution, with deps and tools of this run. `since` is where the run's own messages begin."""
        return self.what.open(
            current,
            host=host,
            runtime=execution.runtime,
            history=history,
            artifacts=RunArtifacts(execution.store),
            start=start,
            since=since,
            conversation_id=execution.run.thread,
            waiter=DurableWaiter(host.outside),
        )
