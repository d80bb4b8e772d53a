"""Runs the lines of a file as prompts of one batch, and prints their answers: `python3 batch.py MODEL < prompts.txt`. Python 3.10 or newer.

Each prompt is one line of the output: the line number, a tab, and the answer as JSON text. The exit code is 1 if a prompt has no answer.
`sluice batch` does this for CSV files.
"""
import http.client, json, os, signal, sys, time, urllib.error, urllib.request

URL = os.environ.get("SLUICE_URL", "http://127.0.0.1:8080")
HEADERS = {"x-api-key": os.environ.get("SLUICE_API_KEY", ""), "Content-Type": "application/json"}
MODEL = (sys.argv[1:] or ["echo-1"])[0]
UNAVAILABLE = (OSError, http.client.HTTPException)


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS), timeout=60).read()


def message_of(error):
    """The message of the service, or the reason why there is no response."""
    if not isinstance(error, urllib.error.HTTPError):
        return f"Cannot reach {URL}: {getattr(error, 'reason', error)}. Start the service, or set SLUICE_URL."
    text = error.read().decode(errors="replace")
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"The service responded with status {error.code}: {text[:200]}"


def get(path, tries=60):
    """The response to a GET request. If the service restarts meanwhile, then the request is repeated, because the
    batch itself continues."""
    for left in reversed(range(tries)):
        try:
            return call(path)
        except UNAVAILABLE as error:
            if left == 0 or getattr(error, "code", 500) < 429:
                sys.exit(message_of(error))
            time.sleep(1)


def prompts():
    lines = enumerate(sys.stdin.buffer.read().decode("utf-8-sig").splitlines(), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def main():
    try:
        requests = [
            {"custom_id": f"line-{number}",
             "params": {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": prompt}]}}
            for number, prompt in prompts()
        ]
    except UnicodeDecodeError:
        sys.exit("The prompts are not UTF-8. Save the file as UTF-8.")
    if not requests:
        sys.exit("No prompts on standard input: python3 batch.py MODEL < prompts.txt")
    try:
        batch = json.loads(call("/v1/messages/batches", {"requests": requests}))
    except UNAVAILABLE as error:
        sys.exit(message_of(error))
    path = f"/v1/messages/batches/{batch['id']}"
    print(batch["id"], file=sys.stderr, flush=True)
    while batch["processing_status"] != "ended":
        time.sleep(1)
        batch = json.loads(get(path))
    print(batch["request_counts"], file=sys.stderr)
    if not batch["results_url"]:
        sys.exit(f"{batch['id']} has no results.")
    failures = 0
    for line in get(path + "/results").decode().splitlines():
        each = json.loads(line)
        result = each["result"]
        if result["type"] == "succeeded":
            text = "".join(block.get("text", "") for block in result["message"]["content"])
            print(each["custom_id"], json.dumps(text, ensure_ascii=False), sep="\t")
        else:
            failures += 1
            reason = result.get("error", {}).get("error", {}).get("message", result["type"])
            print(f"{each['custom_id']}: {reason}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may close the pipe
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted. The batch continues to run.")
