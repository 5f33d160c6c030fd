"""An answer on its way from an exchange to its job: streamed, put together from a stream, or whole."""

import orjson

from workers.assemble import Assembler
from workers.engine import Delta, EngineBroken, EngineCall, Final
from workers.engines.exchange import Exchange
from workers.engines.faults import event_fault
from workers.engines.sse import StreamParser, read_usage
from workers.engines.usage import checked, tokens_of_answer, tokens_of_stream

CALLED_OFF = "abort"  # the finish reason of vLLM and SGLang for answers that they gave up themselves


class Relay:
    """Of one stream. A call that wants the whole answer gets no deltas, and a body at the end."""

    def __init__(self, call: EngineCall) -> None:
        options = call.body.get("stream_options")
        self._call = call
        self._parser = StreamParser(
            usage_wanted=call.stream and isinstance(options, dict) and options.get("include_usage") is True,
            progress_wanted=call.stream and call.body.get("return_progress") is True,
        )
        self._assembler = None if call.stream else Assembler()
        self._payloads = 0

    async def next(self, exchange: Exchange) -> Delta | None:
        """None at the end. Raises what the engine reported, after all that came before it."""
        while (delta := await _next(exchange, self._parser)) is not None:
            self._payloads += delta.count
            if self._assembler is None:
                return delta
            _assemble(self._assembler, delta)
        return None

    async def end(self, exchange: Exchange) -> Final:
        """After the last delta. Raises EngineBroken for an answer that the engine itself called off."""
        await exchange.drain()
        parser = self._parser
        if parser.finish_reason == CALLED_OFF:
            raise EngineBroken("the engine called its answer off")
        usage = checked(parser.usage, self._call, written=tokens_of_stream(self._payloads))
        body = b"" if self._assembler is None else self._assembler.whole(usage)
        return Final(body, usage, parser.finish_reason)


async def _next(exchange: Exchange, parser: StreamParser) -> Delta | None:
    while parser.failure is None and not parser.done and (chunk := await exchange.read()):
        if (delta := parser.feed(chunk)) is not None:
            return delta
    if parser.failure is not None:
        raise parser.failure
    return parser.close()


def _assemble(assembler: Assembler, delta: Delta) -> None:
    try:
        assembler.feed(delta.data)
    except orjson.JSONDecodeError as error:
        raise EngineBroken("the engine sent a stream event that is not JSON") from error


async def whole_answer(exchange: Exchange, call: EngineCall) -> Final:
    """Of a request that was not streamed."""
    parts = []
    while chunk := await exchange.read():
        parts.append(chunk)
    body = b"".join(parts)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineBroken("the engine's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise EngineBroken("the engine's answer is not a JSON object")
    if (fault := event_fault(answer, body)) is not None:
        raise fault
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    if reason == CALLED_OFF:
        raise EngineBroken("the engine called its answer off")
    given = answer.get("usage")
    usage = read_usage(given, answer.get("timings")) if isinstance(given, dict) else None
    return Final(
        body=body,
        usage=checked(usage, call, written=tokens_of_answer(answer)),
        finish_reason=reason if isinstance(reason, str) else None,
    )
