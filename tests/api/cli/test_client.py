"""The client commands against a stand-in server that speaks the contract (tests/e2e drives the real one)."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import orjson
import pytest
from typer.testing import CliRunner

from api.cli.client import Client, NoAnswer, RequestRefused, refused, segment
from api.cli.job import parameter
from api.cli.main import app
from broker.client_settings import ClientSettings
from broker.errors import InvalidJob

EVENTS = b"".join(
    b"data: " + orjson.dumps({"choices": [{"delta": {"content": word}}]}) + b"\n\n" for word in ("Hel", "lo")
)


class StandIn(BaseHTTPRequestHandler):
    """Answers from `script[method path]`; keeps what it was asked."""

    script: ClassVar[dict[str, tuple[int, bytes]]]
    asked: ClassVar[list[tuple[str, str, Any]]]

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = orjson.loads(self.rfile.read(length)) if length else None
        self.asked.append((self.command, self.path, {"body": body, "key": self.headers.get("Authorization")}))
        status, content = self.script[f"{self.command} {self.path.partition('?')[0]}"]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandIn]]:
    StandIn.script = {"GET /v1/models": (200, b'{"data": [{"id": "small"}, {"id": "large"}]}')}
    StandIn.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HEADWAY_URL", f"http://127.0.0.1:{http.server_port}/")
        yield StandIn
        http.shutdown()
        thread.join()


def run(*words: str, text: str | None = None) -> str:
    result = CliRunner().invoke(app, list(words), input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_submit_sends_a_chat_message_class_and_parameters(server: type[StandIn]) -> None:
    server.script["POST /v1/jobs"] = (202, b'{"id": "job_1", "status": "queued"}')
    output = run("job", "submit", "hi", "--class", "P2", "--param", "max_tokens=64", "--param", "stop=END")
    question = [{"role": "user", "content": "hi"}]
    expected = {"model": "small", "messages": question, "class": "P2", "max_tokens": 64, "stop": "END"}
    assert server.asked[-1][2]["body"] == expected
    assert orjson.loads(output)["id"] == "job_1"


def test_submit_with_wait_polls_until_the_end(server: type[StandIn]) -> None:
    server.script["POST /v1/jobs"] = (202, b'{"id": "job_1", "status": "queued"}')
    server.script["GET /v1/jobs/job_1"] = (200, b'{"id": "job_1", "status": "succeeded"}')
    assert orjson.loads(run("job", "submit", "-", "--wait", text="from a pipe"))["status"] == "succeeded"
    assert server.asked[1][2]["body"]["messages"][0]["content"] == "from a pipe"
    assert server.asked[-1][1] == "/v1/jobs/job_1?wait=30"


def test_get_cancel_and_list_ask_the_jobs_api(server: type[StandIn]) -> None:
    job = {"id": "job_1.small", "status": "running", "class": "P1", "pool": "small"}
    server.script["GET /v1/jobs/job_1.small"] = (200, orjson.dumps(job))
    server.script["DELETE /v1/jobs/job_1.small"] = (200, orjson.dumps({**job, "status": "cancelled"}))
    server.script["GET /v1/jobs"] = (200, orjson.dumps({"data": [job]}))
    assert orjson.loads(run("job", "get", "job_1.small"))["status"] == "running"
    assert orjson.loads(run("job", "cancel", "job_1.small"))["status"] == "cancelled"
    assert run("job", "list", "--status", "running", "--class", "P1") == "job_1.small  running    P1  small\n"
    assert server.asked[-1][1] == "/v1/jobs?status=running&class=P1"


def test_chat_prints_the_answer_as_it_streams(server: type[StandIn]) -> None:
    server.script["POST /v1/chat/completions"] = (200, b": ping\n\n" + EVENTS + b"data: [DONE]\n\n")
    assert run("chat", "hello", "--model", "large", "--system", "be brief") == "Hello\n"
    body = server.asked[-1][2]["body"]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["model"], body["stream"]) == ("large", True)


def test_a_conversation_sends_its_whole_history(
    server: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script["POST /v1/chat/completions"] = (200, EVENTS + b"data: [DONE]\n\n")
    output = run("chat", text="one\n\ntwo\n")
    assert output.count("Hello") == 2
    contents = [message["content"] for message in server.asked[-1][2]["body"]["messages"]]
    assert contents[:3] == ["one", "Hello", "two"]


def test_an_error_after_the_first_byte_is_an_error(server: type[StandIn]) -> None:
    event = b'data: {"error": {"message": "engine died", "type": "server_error", "code": null, "param": null}}\n\n'
    server.script["POST /v1/chat/completions"] = (200, EVENTS + event)
    with pytest.raises(RequestRefused, match="engine died"):
        run("chat", "hello")


def test_the_key_is_sent(server: type[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "secret")
    with Client(ClientSettings()) as client:
        assert client.first_model() == "small"
    assert server.asked[-1][2]["key"] == "Bearer secret"


def test_nobody_there_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_URL", "http://127.0.0.1:9")
    with Client(ClientSettings()) as client, pytest.raises(NoAnswer, match="headway up"):
        client.call("GET", "/v1/models")


def test_refusals_are_read_from_openais_error_shape_or_shown_as_they_are() -> None:
    shaped = b'{"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found", "param": "model"}}'
    assert str(refused(404, shaped)) == "no such model [model] (model_not_found)"
    assert str(refused(502, b"<html>bad gateway")) == "HTTP 502: <html>bad gateway"


def test_parameters_are_json_or_text() -> None:
    assert parameter("max_tokens=64") == ("max_tokens", 64)
    assert parameter('stop=["a"]') == ("stop", ["a"])
    assert parameter("user=a=b") == ("user", "a=b")
    with pytest.raises(InvalidJob):
        parameter("max_tokens")


def test_submit_sends_a_raw_prompt_if_asked_and_leaves_the_class_to_the_api(server: type[StandIn]) -> None:
    server.script["POST /v1/jobs"] = (202, b'{"id": "job_1", "status": "queued"}')
    run("job", "submit", "hi", "--completion")
    assert server.asked[-1][2]["body"] == {"model": "small", "prompt": "hi"}


def test_a_refused_key_names_the_variable() -> None:
    shaped = (
        b'{"error": {"message": "wrong key", "type": "invalid_request_error", "code": "invalid_api_key"}}'
    )
    assert "HEADWAY_API_KEY" in str(refused(401, shaped))
    assert "HEADWAY_API_KEY" not in str(refused(403, shaped))


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("../../x", "..%2F..%2Fx"), ("a b?c#d", "a%20b%3Fc%23d"), ("job_1.small", "job_1.small")],
)
def test_what_is_typed_as_an_id_stays_one_segment(typed: str, sent: str) -> None:
    assert segment(typed) == sent


def test_no_id_is_refused() -> None:
    with pytest.raises(RequestRefused, match="id"):
        segment("")


def test_usage_is_asked_for_by_its_days_and_groups_and_csv_is_printed_as_it_comes(
    server: type[StandIn],
) -> None:
    server.script["GET /v1/usage"] = (200, b"tenant,requests\r\nacme,3\r\n")
    printed = run("usage", "--csv", "--from", "2026-11-01", "--to", "2026-11-02", "--by", "tenant")
    assert printed.splitlines() == ["tenant,requests", "acme,3"]
    assert server.asked[-1][1] == "/v1/usage?from=2026-11-01&to=2026-11-02&by=tenant&format=csv"


def test_what_steers_a_terminal_is_not_printed() -> None:
    error = {"error": {"message": "\x1b]0;mine\x07no\x9b31m room\u202e", "code": "\x1b[2J"}}
    assert str(refused(400, orjson.dumps(error))) == "?]0;mine?no?31m room? (?[2J)"
