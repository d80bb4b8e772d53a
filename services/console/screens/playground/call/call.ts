/**
 * A request that a form of the playground sends. From this record, the playground also generates example code that repeats the request, in each of
 * the {@link LANGUAGES}.
 */
export interface Call {
  /** Label that distinguishes several requests of one form, such as the id of the model. */
  readonly name: string
  readonly path: string
  readonly body: Readonly<Record<string, unknown>>
  /** Method of the OpenAI SDK, except `messages`, which belongs to the Anthropic SDK. Undefined if no SDK has a method for the endpoint. */
  readonly method?:
    | 'chat.completions'
    | 'responses'
    | 'messages'
    | 'completions'
    | 'embeddings'
    | 'audio.transcriptions'
    | 'audio.speech'
    | 'moderations'
  /** Name of the uploaded file. The body is then a multipart form. */
  readonly file?: string
  /** Name of the file in which a binary response is saved. */
  readonly into?: string
}

export const LANGUAGES = ['curl', 'Python', 'TypeScript'] as const
export type Language = (typeof LANGUAGES)[number]

const KEY_HINT = 'Run once per shell: export SLUICE_API_KEY=YOUR_KEY'

export function codeOf(language: Language, call: Call, origin: string): string {
  const code = { curl: curlOf, Python: pythonOf, TypeScript: typescriptOf }[language](call, origin)
  return `${language === 'TypeScript' ? '//' : '#'} ${KEY_HINT}\n${code}`
}

function curlOf({ path, body, file, into }: Call, origin: string): string {
  const head = `curl ${body.stream ? '-N ' : ''}${origin}${path} ${into === undefined ? '' : `-o ${into} `}\\
  -H "Authorization: Bearer $SLUICE_API_KEY" \\\n`
  if (file === undefined) {
    return `${head}  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body, null, 2))}`
  }
  const fields = Object.entries(body).flatMap(([name, value]) =>
    Array.isArray(value)
      ? value.map((one) => `  --form-string ${quoted(`${name}[]=${one}`)}`)
      : [`  --form-string ${quoted(`${name}=${value}`)}`],
  )
  // In a quoted value of -F, curl interprets backslash and double quote, so both are escaped.
  const name = file.replace(/["\\]/g, '\\$&')
  return `${head}${[`  -F ${quoted(`file=@"${name}"`)}`, ...fields].join(' \\\n')}`
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** Code that prints the text of one stream event, by SDK method. */
const STREAM_READERS: Readonly<Record<string, { readonly python: string; readonly typescript: string }>> = {
  'chat.completions': {
    python: 'if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    typescript: "process.stdout.write(chunk.choices[0]?.delta.content ?? '')",
  },
  completions: {
    python: 'if chunk.choices:\n        print(chunk.choices[0].text or "", end="", flush=True)',
    typescript: "process.stdout.write(chunk.choices[0]?.text ?? '')",
  },
  responses: {
    python: 'if chunk.type == "response.output_text.delta":\n        print(chunk.delta, end="", flush=True)',
    typescript: "if (chunk.type === 'response.output_text.delta') process.stdout.write(chunk.delta)",
  },
  messages: {
    python:
      'if chunk.type == "content_block_delta" and chunk.delta.type == "text_delta":\n        print(chunk.delta.text, end="", flush=True)',
    typescript: `if (chunk.type === 'content_block_delta' && chunk.delta.type === 'text_delta') {
    process.stdout.write(chunk.delta.text)
  }`,
  },
}

/** Returns the SDK client for a request. The Anthropic SDK appends /v1 to its base URL. */
function clientOf({ method }: Call, origin: string) {
  return method === 'messages'
    ? { python: 'anthropic', typescript: '@anthropic-ai/sdk', name: 'Anthropic', url: origin }
    : { python: 'openai', typescript: 'openai', name: 'OpenAI', url: `${origin}/v1` }
}

function pythonOf(call: Call, origin: string): string {
  const client = clientOf(call, origin)
  const head = `import os
from ${client.python} import ${client.name}

client = ${client.name}(base_url="${client.url}", api_key=os.environ["SLUICE_API_KEY"])`
  const { path, method, file, into } = call
  const body = bodyOf(call)
  if (!method) {
    return `${head}
answer = client.post("${path.slice('/v1'.length)}", cast_to=object, body=${pythonValue(body)})
print(answer)`
  }
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${pythonValue(value, '    ')},`)
  const args = [...(file === undefined ? [] : [`    file=open(${JSON.stringify(file)}, "rb"),`]), ...fields].join('\n')
  if (into !== undefined) {
    return `${head}\nanswer = client.${method}.create(\n${args}\n)\nanswer.write_to_file(${JSON.stringify(into)})`
  }
  if (!body.stream) {
    return `${head}\nanswer = client.${method}.create(\n${args}\n)\nprint(answer${isText(body) ? '' : '.to_json()'})`
  }
  return `${head}
stream = client.${method}.create(
${args}
)
for chunk in stream:
    ${STREAM_READERS[method]?.python}`
}

function typescriptOf(call: Call, origin: string): string {
  const { path, method, file, into } = call
  const body = bodyOf(call)
  const client = clientOf(call, origin)
  const files = file !== undefined ? "import { createReadStream } from 'node:fs'\n" : ''
  const head = `${into !== undefined ? "import { writeFile } from 'node:fs/promises'\n" : files}import ${client.name} from '${client.typescript}'

const client = new ${client.name}({
  baseURL: '${client.url}',
  apiKey: process.env.SLUICE_API_KEY,
})`
  const json = JSON.stringify(body, null, 2)
  if (!method) {
    return `${head}\nconst answer = await client.post('${path.slice('/v1'.length)}', { body: ${json} })
console.log(JSON.stringify(answer, null, 2))`
  }
  const fields =
    file === undefined ? json : json.replace('{\n', () => `{\n  "file": createReadStream(${JSON.stringify(file)}),\n`)
  if (into !== undefined) {
    const save = `await writeFile(${JSON.stringify(into)}, Buffer.from(await answer.arrayBuffer()))`
    return `${head}\nconst answer = await client.${method}.create(${fields})\n${save}`
  }
  if (!body.stream) return `${head}\nconst answer = await client.${method}.create(${fields})\nconsole.log(answer)`
  return `${head}
const stream = await client.${method}.create(${fields})
for await (const chunk of stream) {
  ${STREAM_READERS[method]?.typescript}
}`
}

/**
 * Returns the request body for SDK code. `stream_options` is left out, because the code prints only the text. If the SDK has no method for
 * the endpoint, then the code sends a plain POST and prints the whole answer. `stream` is left out in this case.
 */
function bodyOf({ body, method }: Call): Record<string, unknown> {
  const { stream_options: _, stream, ...rest } = body
  return stream && method ? { ...rest, stream } : rest
}

function isText({ response_format: format }: Readonly<Record<string, unknown>>): boolean {
  return format === 'srt' || format === 'vtt' || format === 'text'
}

function pythonValue(value: unknown, indent = ''): string {
  const inner = `${indent}    `
  if (value === null || value === undefined) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (Array.isArray(value))
    return block(
      '[',
      ']',
      value.map((one) => pythonValue(one, inner)),
      indent,
    )
  if (typeof value !== 'object') return JSON.stringify(value)
  const pairs = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonValue(one, inner)}`)
  return block('{', '}', pairs, indent)
}

function block(open: string, close: string, parts: readonly string[], indent: string): string {
  if (parts.length === 0) return open + close
  return `${open}\n${parts.map((part) => `${indent}    ${part},\n`).join('')}${indent}${close}`
}
