page() { python -c 'import json; print(len(json.load(open("benchmarks.json"))["benchmarks"][0]["requests"]["successful"]))'; }
ask() {
  python -c 'import json, sys; print(json.dumps({"prompt": sys.argv[1]}))' "$1" > prompts.jsonl
  guidellm run --backend "kind=openai_http,target=http://127.0.0.1:8080,model=echo-1,api_key=sk-local-development,stream=$2" \
    --tokenizer kind=hf_auto,model=tokenizer --data kind=json_file,path=prompts.jsonl \
    --profile kind=synchronous --constraint kind=max_requests,count=1 --disable-console >&2
  python - "$2" <<'END'
import json, sys
[request] = json.load(open("benchmarks.json"))["benchmarks"][0]["requests"]["successful"]
assert request["output_tokens"] > 0, request
if sys.argv[1] == "true":
    assert 0 < request["time_to_first_token_ms"] < 1_000 * request["request_latency"], "It came in one piece."
print(request["output"])
END
}
whole() { ask "$1" false; }
streamed() { ask "$1" true; }
