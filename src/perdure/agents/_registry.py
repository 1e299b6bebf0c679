"""An agent under a name, with its options: what an engine needs to know of it, checked when it is registered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import UserError
from pydantic_ai.external_events import ExternalEventWaiter
from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset, PrefixedToolset, RenamedToolset, WrapperToolset
from pydantic_ai.usage import RequestUsage

from perdure.agents._faults import describe
from perdure.agents._messages import start_message
from perdure.agents._outputs import is_text, output_adapter
from perdure.agents._session import AgentSession, open_session
from perdure.agents._turn import Host
from perdure.agents._values import Shelf, keep
from perdure.context import CurrentRun
from perdure.core import given
from perdure.core.budget import Budget
from perdure.core.codec import clean, fingerprint
from perdure.core.errors import ConfigurationError, ExecutionError, InvalidTrigger, PerdureError
from perdure.core.limits import DEPTH_MAX, LEAVE_PATIENCE, NAME_MAX
from perdure.core.runtime import Runtime
from perdure.core.trigger import TriggerEnvelope
from perdure.effects import declared

Prompt = str | Sequence[UserContent]
Render = Callable[[TriggerEnvelope], Prompt | Awaitable[Prompt]]
ToolsetFactory = Callable[[CurrentRun], Any]
Rules = Mapping[str, Mapping[str, Any]]

UNKNOWN_MODEL: Final = "unknown"


@dataclass(frozen=True, slots=True)
class StaticTool:
    """A tool that is known without running the agent. `metadata` is its own."""

    name: str
    schema: dict[str, Any]
    metadata: Mapping[str, Any]
    requires_approval: bool


@dataclass(frozen=True, eq=False)
class Registration:
    """An agent and its options.

    Args:
        agent: A Pydantic AI agent. It is never wrapped, copied or changed.
        name: What it is registered as; absent: the agent's own name.
        version: Of the agent's code, as the user counts it.
        input: What a payload must be: any type that Pydantic validates.
        deps: The agent's dependencies: a value, a function of the current run (async or not), or a function made by `@asynccontextmanager`, whose
            context is entered for each execution. A value is never entered.
        tools: Rules by pattern of tool name: `{"pay_*": effect(), "delete_*": approve()}`.
        toolset: A function of the current run that gives further tools, called once per execution: a toolset, or a list of tools and functions.
        render: The start message in place of the JSON block.
        model: In place of the agent's own.
        budget: Its limits.

    Raises:
        ConfigurationError: What is wrong, and what to write instead.
    """

    agent: Agent[Any, Any]
    name: str = ""
    version: str | None = None
    input: Any = Any
    deps: Any = None
    tools: Rules = field(default_factory=dict[str, Mapping[str, Any]])
    toolset: ToolsetFactory | None = None
    render: Render | None = None
    model: Model | KnownModelName | str | None = None
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        _check_agent(self.agent)
        name = self.name or self.agent.name
        if not name:
            raise ConfigurationError("This agent has no name. Give it one: Agent(…, name='support') or register(agent, name='support').")
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise ConfigurationError(f"The agent name must be a text, not {given.shown(name)}.")
        if len(name) > NAME_MAX or name != name.strip() or not name.isprintable():
            raise ConfigurationError(
                f"The agent name {name[:NAME_MAX]!r} won't do: printable, without spaces around it, at most {NAME_MAX} characters."
            )
        for option, wrong in (
            ("version", given.words(self.version)),
            ("budget", None if isinstance(self.budget, Budget) else f"must be a Budget, not {given.shown(self.budget)}"),  # pyright: ignore[reportUnnecessaryIsInstance]
        ):
            if wrong is not None:
                raise ConfigurationError(f"Agent {name!r}: {option} {wrong}.")
        object.__setattr__(self, "name", name)
        try:
            object.__setattr__(self, "_input", TypeAdapter(self.input))
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise ConfigurationError(f"Agent {name!r}: input={self.input!r} is not a type that Pydantic can validate: {error.message}") from error
        object.__setattr__(self, "_output", output_adapter(self.agent.output_type))
        static = list(static_tools(self.agent.toolsets))
        object.__setattr__(self, "static_tools", tuple(static))
        self._check(static)

    _input: TypeAdapter[Any] = field(init=False, repr=False)
    _output: TypeAdapter[Any] = field(init=False, repr=False)
    static_tools: tuple[StaticTool, ...] = field(init=False, repr=False)
    """The tools that are known without running the agent; an MCP server's and a factory's are not."""

    # ── what it takes and gives ──────────────────────────────────────────────────────────────────────────────

    def check(self, payload: Any) -> Any:
        """The payload as it is stored.

        Raises:
            InvalidTrigger: It does not fit; `details["field"]` is the path of the first thing wrong, `details["errors"]` are all.
        """
        plain = given.plain("payload", payload) if self.input in (Any, object) else _readable_twice(payload)
        value = self.validated(plain)
        try:
            return given.plain("payload", self._input.dump_python(value, mode="json", by_alias=True))
        except (InvalidTrigger, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            raise InvalidTrigger(f"Agent {self.name!r}: payload: it can't be stored as JSON: {describe(error)}", field="payload") from error

    def validated(self, payload: Any) -> Any:
        """A stored payload as the type that the agent declared.

        Raises:
            InvalidTrigger: It no longer fits: the type was changed.
        """
        try:
            return self._input.validate_python(payload)
        except ValidationError as error:
            raise _invalid(self.name, error) from error
        except (Exception, SystemExit) as error:
            raise InvalidTrigger(f"Agent {self.name!r}: payload: what validates it raised {describe(error)}", field="payload") from error

    def parse_output(self, output: Any) -> Any:
        """A stored output as the agent gave it."""
        return self._output.validate_python(output)

    async def keep(self, value: Any, shelf: Shelf) -> Any:
        """A tool's result as it is stored; see `perdure.agents.keep`."""
        return await keep(value, shelf)

    @property
    def input_schema(self) -> dict[str, Any]:
        return self._input.json_schema()

    @property
    def output_schema(self) -> dict[str, Any]:
        return self.agent.output_json_schema()

    @property
    def text_output(self) -> bool:
        return is_text(self.agent.output_type)

    @property
    def model_name(self) -> str:
        model = self.model or self.agent.model
        return model if isinstance(model, str) else model.model_name if model is not None else UNKNOWN_MODEL

    def check_model(self) -> None:
        """Whether the model can be called from this process, as far as that is known without a call.

        Raises:
            ConfigurationError: It is a name that stands for no model, its key is not in the environment, or its library is not installed.
        """
        model = self.model or self.agent.model
        if not isinstance(model, str):
            return
        try:
            infer_model(model)
        except (UserError, ValueError, ImportError) as error:
            raise ConfigurationError(f"Agent {self.name!r}: the model {model!r} can't be used: {error}") from error

    def price(self, input_tokens: int, output_tokens: int) -> Decimal | None:
        """What a call of this size costs in US dollars; None where nobody knows the price."""
        return price_of(self.model or self.agent.model, input_tokens=input_tokens, output_tokens=output_tokens)

    @property
    def output_limit(self) -> int | None:
        """The most tokens of one response, as the agent's or its model's settings say; None where they say nothing, or are a function."""
        model = self.model or self.agent.model
        for settings in (self.agent.model_settings, None if isinstance(model, str) or model is None else model.settings):
            limit = cast("Mapping[str, Any]", settings).get("max_tokens") if isinstance(settings, Mapping) else None
            if isinstance(limit, int):
                return limit
        return None

    @property
    def tools_hash(self) -> str:
        """A hash of the tools' names and schemas, as far as they are known without running the agent."""
        return fingerprint({tool.name: clean(tool.schema) for tool in self.static_tools})

    def found_hash(self, tools: Mapping[str, Mapping[str, Any]]) -> str | None:
        """A hash of those tools that only showed themselves when the agent ran: a factory's, a toolset's, an MCP server's. None where there are none."""
        static = {tool.name for tool in self.static_tools}
        found = {name: clean(schema) for name, schema in tools.items() if name not in static}
        return fingerprint(found) if found else None

    def undeclared(self) -> list[str]:
        """The plain tools: known, and declared by nobody. They may run again after a crash."""
        return sorted(
            tool.name
            for tool in self.static_tools
            if not declared(tool.metadata) and not any(declared(rule) for pattern, rule in self.tools.items() if fnmatchcase(tool.name, pattern))
        )

    # ── an execution of it ───────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def open(
        self,
        current: CurrentRun,
        *,
        host: Host,
        runtime: Runtime,
        history: Sequence[ModelMessage],
        artifacts: Shelf,
        start: bool,
        since: int = 0,
        conversation_id: str | None = None,
        waiter: ExternalEventWaiter | None = None,
    ) -> AsyncGenerator[AgentSession]:
        """A session over `history`, with this agent's deps and tools; `start` adds the start message. Call it with `current` entered.

        Raises:
            ExecutionError: `setup_failed`: deps, a tool factory, `render` or a toolset raised.
            ArtifactNotFoundError: An attachment is gone.
        """
        async with _closed_in_time() as stack:
            with _setting_up("deps"):
                deps = await _made(self.deps, current, stack) if _is_function(self.deps) else self.deps
            with _setting_up("toolset"):
                toolsets = _toolsets(await _made(self.toolset, current, stack)) if self.toolset is not None else []
            with _setting_up("render"):
                prompt = await self._prompt(current.trigger) if start else None
            session = open_session(
                self.agent,
                history=history,
                host=host,
                runtime=runtime,
                run_id=current.id,
                conversation_id=conversation_id,
                deps=deps,
                prompt=prompt,
                toolsets=toolsets,
                model=self.model,
                since=since,
                waiter=waiter,
                artifacts=artifacts,
            )
            yield await stack.enter_async_context(session)

    async def _prompt(self, trigger: TriggerEnvelope) -> Prompt:
        if self.render is None:
            return start_message(trigger)
        rendered = self.render(trigger)
        prompt: Any = await rendered if inspect.isawaitable(rendered) else rendered
        if not isinstance(prompt, (str, list, tuple)) or not prompt:
            # With nothing to say the model would be asked about nothing, or about the end of somebody else's conversation.
            raise ExecutionError(
                f"render gave {given.shown(cast(object, prompt))}: it must give a text, or a list of texts and files.", code="setup_failed"
            )
        return cast(Prompt, prompt)

    # ── at registration ──────────────────────────────────────────────────────────────────────────────────────

    def _check(self, static: Sequence[StaticTool]) -> None:
        agent, name = self.agent, self.name
        if self.agent.model is None and self.model is None:
            raise ConfigurationError(f"Agent {name!r} has no model. Give it one: Agent('openai:…') or register(agent, model=…).")
        if self.deps is None and agent.deps_type not in (type(None), object) and not _may_be_none(agent.deps_type):
            raise ConfigurationError(f"Agent {name!r} needs deps of type {agent.deps_type.__name__}: register(agent, deps=…).")
        for hook in ("render", "toolset"):
            if getattr(self, hook) is not None and not callable(getattr(self, hook)):
                raise ConfigurationError(f"Agent {name!r}: {hook}= takes a function, not {type(getattr(self, hook)).__name__}.")
        if not isinstance(self.tools, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise ConfigurationError(f"Agent {name!r}: tools= takes rules by pattern, {{'pay_*': effect()}}. Further tools go in toolset=.")
        for pattern, rule in self.tools.items():
            if not isinstance(rule, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"Agent {name!r}: tools[{pattern!r}] must be effect(…), approve(…), plain() or a union of them.")
        closed = self.toolset is None and all(_is_closed(toolset) for toolset in agent.toolsets)
        names = [tool.name for tool in static]
        for pattern in self.tools:
            if closed and not any(fnmatchcase(each, pattern) for each in names):
                raise ConfigurationError(
                    f"Agent {name!r}: tools[{pattern!r}] fits no tool of this agent. Its tools: {', '.join(sorted(names)) or 'none'}."
                )
        if self.budget.max_cost is not None and self.budget.unknown_price == "refuse" and price_of(self.model or agent.model) is None:
            raise ConfigurationError(
                f"Agent {name!r}: max_cost needs a price, and none is known for {self.model_name!r}. "
                "Leave max_cost out, or say Budget(…, unknown_price='ignore')."
            )


def static_tools(toolsets: Sequence[AbstractToolset[Any]]) -> Iterator[StaticTool]:
    """The tools of function toolsets, under the names that the model sees."""
    for toolset in toolsets:
        for tool, name, metadata in _static(toolset):
            known = tool.tool_def
            yield StaticTool(name, known.parameters_json_schema, {**(known.metadata or {}), **metadata}, known.kind == "unapproved")


def _static(toolset: AbstractToolset[Any]) -> Iterator[tuple[Tool[Any], str, Mapping[str, Any]]]:
    if isinstance(toolset, FunctionToolset):
        shared: Mapping[str, Any] = toolset.metadata or {}
        for name, tool in toolset.tools.items():
            yield tool, name, {**shared, **(tool.metadata or {})}
    elif isinstance(toolset, CombinedToolset):
        for each in toolset.toolsets:
            yield from _static(each)
    elif isinstance(toolset, WrapperToolset):
        wrapper = toolset
        renamed = {old: new for new, old in wrapper.name_map.items()} if isinstance(wrapper, RenamedToolset) else {}
        prefix = f"{wrapper.prefix}_" if isinstance(wrapper, PrefixedToolset) else ""
        # SetMetadataToolset is not exported under a stable name in every version; its field is.
        more = getattr(wrapper, "metadata", None)
        for tool, name, metadata in _static(wrapper.wrapped):
            yield tool, prefix + renamed.get(name, name), {**metadata, **(cast("dict[str, Any]", more) if isinstance(more, dict) else {})}


def _is_closed(toolset: AbstractToolset[Any]) -> bool:
    """Whether every tool of it is known without running the agent."""
    if isinstance(toolset, FunctionToolset):
        return True
    if isinstance(toolset, CombinedToolset):
        return all(_is_closed(each) for each in toolset.toolsets)
    return isinstance(toolset, WrapperToolset) and _is_closed(toolset.wrapped)


def price_of(model: Model | str | None, *, input_tokens: int = 1, output_tokens: int = 1) -> Decimal | None:
    """What a call costs in US dollars, by genai-prices; None where it does not know the model."""
    if model is None:
        return None
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        response = ModelResponse(parts=[], model_name=name or provider, provider_name=provider if name else None)
    else:
        response = ModelResponse(parts=[], model_name=model.model_name, provider_name=model.system, provider_url=model.base_url)
    response.usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        return response.cost().total_price
    except (LookupError, ValueError):
        return None


def _check_agent(agent: Any) -> None:
    if not isinstance(agent, AbstractAgent):
        raise ConfigurationError(f"register() takes a Pydantic AI Agent, not {type(agent).__name__}.")


def _may_be_none(kind: Any) -> bool:
    try:
        TypeAdapter(kind, config=None if hasattr(kind, "__pydantic_core_schema__") else {"arbitrary_types_allowed": True}).validate_python(None)
    except Exception:
        return False
    return True


def _invalid(agent: str, error: ValidationError) -> InvalidTrigger:
    errors = [{"field": ".".join(str(each) for each in one["loc"]), "message": one["msg"]} for one in error.errors(include_url=False)]
    first = errors[0]
    where = f"payload.{first['field']}" if first["field"] else "payload"
    return InvalidTrigger(f"Agent {agent!r}: {where}: {first['message']}", field=first["field"], errors=errors)


@asynccontextmanager
async def _closed_in_time() -> AsyncGenerator[AsyncExitStack]:
    """A stack that takes at most `LEAVE_PATIENCE` to close. An error that closes it is told as it is, even if something hangs then.

    Raises:
        TimeoutError: What hung was left behind.
    """
    error: BaseException | None = None
    limit = asyncio.timeout(None)
    try:
        async with limit, AsyncExitStack() as stack:
            try:
                yield stack
            except BaseException as raised:
                error = raised
                raise
            finally:
                limit.reschedule(asyncio.get_running_loop().time() + LEAVE_PATIENCE.total_seconds())
    except TimeoutError as late:
        if error is not None and limit.expired():
            raise error from late
        raise


def _readable_twice(value: Any, path: str = "payload", depth: int = 0) -> Any:
    """The value, unless its plain containers hold what is read only once, or each other without end: Pydantic would read those to their end, if they have one."""
    if depth > DEPTH_MAX:
        raise InvalidTrigger(f"{path[:80]}…: it contains itself, or is nested deeper than {DEPTH_MAX} levels (DEPTH_MAX).", field=path)
    if isinstance(value, Mapping):
        for name, each in cast("Mapping[Any, Any]", value).items():
            _readable_twice(each, f"{path}.{name}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(cast("Sequence[Any]", value)):
            _readable_twice(each, f"{path}[{at}]", depth + 1)
    elif hasattr(value, "__next__"):
        raise InvalidTrigger(f"{path}: a {type(value).__qualname__} is read only once. Give plain data, such as a list.", field=path)
    return cast(Any, value)


async def _made(factory: Callable[..., Any], current: CurrentRun, stack: AsyncExitStack) -> Any:
    """What a factory gives; a context manager's value where it was made by `@asynccontextmanager`."""
    made = factory(current) if inspect.signature(factory).parameters else factory()
    if inspect.isasyncgenfunction(inspect.unwrap(factory)):
        return await stack.enter_async_context(made)
    return await made if inspect.isawaitable(made) else made


def _is_function(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, partial)


def _toolsets(made: Any) -> list[AbstractToolset[Any]]:
    if made is None:
        return []
    if isinstance(made, AbstractToolset):
        return [cast("AbstractToolset[Any]", made)]
    items = list(cast("Sequence[Any]", made))
    if items and all(isinstance(each, AbstractToolset) for each in items):
        return items
    return [FunctionToolset(items)]


class _setting_up:
    """Whatever a user's hook raises before the loop is open fails the run as `setup_failed`, with the hook's name."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, PerdureError):
            raise ExecutionError(f"{self._what} raised {describe(error)}", code="setup_failed") from error
