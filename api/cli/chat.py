"""`headway chat`: one question, or a conversation, streamed from `/v1/chat/completions`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from api.cli.client import Client

Message = dict[str, str]


def chat(
    *,
    message: Annotated[str | None, typer.Argument(help="One question; without it, a conversation.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Pool or alias; the first one there is if not given.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each answer.")] = None,
    service_class: Annotated[str, typer.Option("--class", help="P0, P1, P2 or P3.")] = "P0",
) -> None:
    """Talk to a model through the queue. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    from api.cli.client import Client
    from broker.client_settings import ClientSettings

    history: list[Message] = [{"role": "system", "content": system}] if system else []
    with Client(ClientSettings()) as client:
        request: dict[str, Any] = {"model": model or client.first_model(), "stream": True}
        if max_tokens:
            request["max_tokens"] = max_tokens
        headers = {"X-Headway-Class": service_class}
        if message is not None:
            ask(
                client,
                {**request, "messages": [*history, {"role": "user", "content": message}]},
                headers=headers,
            )
            return
        converse(client, request, history=history, headers=headers)


def converse(
    client: "Client", request: dict[str, Any], *, history: list[Message], headers: dict[str, str]
) -> None:
    """Until end of input. An interrupted answer stays in the history as far as it came."""
    typer.echo(f"{request['model']} at {client.url}; Ctrl-D ends")
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        if not text.strip():
            continue
        history.append({"role": "user", "content": text})
        answer = ask(client, {**request, "messages": history}, headers=headers)
        history.append({"role": "assistant", "content": answer})


def ask(client: "Client", body: dict[str, Any], *, headers: dict[str, str]) -> str:
    """Prints the answer as it comes; returns what came until its end or Ctrl-C."""
    pieces: list[str] = []
    try:
        for chunk in client.stream("/v1/chat/completions", body, headers=headers):
            for choice in chunk.get("choices", ()):
                piece = choice.get("delta", {}).get("content") or ""
                pieces.append(piece)
                typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        typer.echo(" [stopped]", nl=False)
    typer.echo()
    return "".join(pieces)
