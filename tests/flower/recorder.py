"""A proxy between a SuperNode and its SuperLink that keeps every byte that passes."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Recorder:
    """Has a port of its own; `sent` and `received` hold (path, body), as the node sees it."""

    def __init__(self, host: str, port: int):
        self.sent: list[tuple[str, bytes]] = []
        self.received: list[tuple[str, bytes]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                recorder.sent.append((self.path, body))
                upstream = http.client.HTTPConnection(host, port, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                upstream.request("POST", self.path, body, headers)
                response = upstream.getresponse()
                answer = response.read()
                recorder.received.append((self.path, answer))
                self.send_response(response.status)
                for key, value in response.getheaders():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(key, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                upstream.close()

            def log_message(self, format, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
