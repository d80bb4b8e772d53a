"""Receives webhooks and checks their signatures: `WEBHOOK_SECRET=whsec_… python3 webhook.py`. Python 3.10 or
newer. A message with a wrong signature, or older than five minutes, gets a 400 and is ignored."""
import base64, hashlib, hmac, json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
seen = set()  # use a database table if messages must survive a restart


def is_genuine(headers, body):
    sent, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > 300:
        return False
    digest = hmac.digest(KEY, f"{sent}.{at}.".encode() + body, hashlib.sha256)
    expected = b"v1," + base64.b64encode(digest)
    return any(hmac.compare_digest(each.encode(), expected) for each in headers.get("webhook-signature", "").split(" "))


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        genuine = is_genuine(self.headers, body)
        self.send_response(204 if genuine else 400)
        self.end_headers()
        if genuine and self.headers["webhook-id"] not in seen:
            seen.add(self.headers["webhook-id"])
            message = json.loads(body)
            print(message["type"], message["data"]["id"], flush=True)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 9000))), Receiver).serve_forever()
