page() {
  python -c 'import glob, json; [file] = glob.glob("artifacts/*/profile_export_aiperf.json"); print(int(json.load(open(file))["request_count"]["avg"]))'
}
ask() {
  prompt=$1
  shift
  python -c 'import json, sys; print(json.dumps({"text": sys.argv[1]}))' "$prompt" > prompts.jsonl
  aiperf profile --url http://127.0.0.1:8080 --api-key sk-local-development --model echo-1 --tokenizer "$PWD/tokenizer" "$@" \
    --input-file prompts.jsonl --custom-dataset-type single_turn --request-count 1 --export-outputs-json \
    --artifact-dir asked --ui none >&2
  python -c 'import json; [one] = json.load(open("asked/outputs.json"))["data"]; print(one["response_text"])'
}
whole() { ask "$1"; }
streamed() { ask "$1" --streaming; }
