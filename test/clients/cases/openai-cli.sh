whole() { openai api chat.completions.create -m echo-1 -g user "$1"; }
streamed() { openai api chat.completions.create --stream -m echo-1 -g user "$1"; }
