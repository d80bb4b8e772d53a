import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { ApiFailure, type Batch, fetchApi, messageOf } from '#services/console/api/client.ts'
import { ErrorText } from '#services/console/parts/parts.tsx'
import { cellText } from '#shared/tables/answers.ts'
import { cellsByIdOf } from './table.ts'

const LINES = 3
/** Maximum lines of the input file that are read to find the inputs of the first answers. */
const INPUT_LINES_MAX = 1_000
const TEXT_CHARS = 300

interface PreviewLine {
  readonly id: string
  /** Beginning of the input. Undefined if the input file was deleted or has expired. */
  readonly input: string | undefined
  readonly answer: string
  readonly hasFailed: boolean
}

/** The first answers of a batch, each with its input, while the batch runs and after its end. */
export function Preview({ batch }: { readonly batch: Batch }) {
  const lines = useSignal<readonly PreviewLine[]>([])
  const problem = useSignal('')
  const { id, request_counts } = batch
  // After the first answers have arrived, the preview does not change any more.
  const ended = Math.min(LINES, request_counts.completed + request_counts.failed)
  useEffect(() => {
    if (ended === 0) return
    const abort = new AbortController()
    previewOf(batch, abort.signal).then(
      (found) => {
        lines.value = found
        problem.value = ''
      },
      (error: unknown) => {
        if (!abort.signal.aborted) problem.value = messageOf(error)
      },
    )
    return () => abort.abort()
  }, [id, ended])
  if (ended === 0) return null
  return (
    <section class="card preview-lines" aria-label="First answers">
      <h2>First answers</h2>
      <ErrorText text={problem.value} />
      <ol>
        {lines.value.map(({ id: line, input, answer, hasFailed }) => (
          <li key={line}>
            <span class="dim">{input ?? line}</span> → <span class={hasFailed ? 'bad' : undefined}>{answer}</span>
          </li>
        ))}
      </ol>
    </section>
  )
}

async function previewOf(batch: Batch, signal: AbortSignal): Promise<PreviewLine[]> {
  const results = [...(await cellsByIdOf(batch, `&limit=${LINES}`, signal))]
  // Without the input file, the custom ids are shown instead of the inputs.
  const wanted = new Set(results.map(([customId]) => customId))
  const inputs = await inputsOf(batch.input_file_id, wanted, signal).catch(() => new Map<string, string>())
  return results.map(([customId, { values, error, invalidAnswer }]) => {
    const text =
      error === '' ? values.map(cellText).join(', ') : invalidAnswer === undefined ? error : `invalid: ${invalidAnswer}`
    return { id: customId, input: inputs.get(customId), answer: beginningOf(text), hasFailed: error !== '' }
  })
}

type Body = Readonly<Record<string, unknown>>

async function inputsOf(file: string | null, wanted: ReadonlySet<string>, signal: AbortSignal) {
  const inputs = new Map<string, string>()
  if (file === null) return inputs
  let count = 0
  for await (const line of linesOf(`/v1/files/${file}/content`, signal)) {
    const id = customIdIn(line)
    if (wanted.has(id)) inputs.set(id, beginningOf(inputIn((JSON.parse(line) as { body?: Body }).body ?? {})))
    if (inputs.size === wanted.size || ++count === INPUT_LINES_MAX) break
  }
  return inputs
}

/** Returns the text that a request sends to the model: its last message, its prompt or its input. */
function inputIn({ messages, prompt, input, ...rest }: Body): string {
  const last = Array.isArray(messages) ? (messages.at(-1) as { content?: unknown } | undefined)?.content : undefined
  return textOf(last ?? prompt ?? input ?? rest)
}

/** Returns a text unchanged, the joined texts of a list of parts, or any other value as JSON. */
function textOf(value: unknown): string {
  if (typeof value === 'string') return value
  const parts = Array.isArray(value) ? value.flatMap((part) => (part as { text?: string } | null)?.text ?? []) : []
  return parts.length > 0 ? parts.join(' ') : JSON.stringify(value)
}

function beginningOf(text: string): string {
  return text.length > TEXT_CHARS ? `${text.slice(0, TEXT_CHARS)}…` : text
}

/** Yields the lines of a response while they arrive, without blank lines. */
export async function* linesOf(path: string, signal?: AbortSignal): AsyncGenerator<string> {
  const { body } = await fetchApi(path, signal ? { signal } : {})
  if (!body) throw new ApiFailure(502, 'The service returned no content.')
  const reader = body
    .pipeThrough(new TextDecoderStream() as never as ReadableWritablePair<string, Uint8Array>)
    .getReader()
  let rest: string[] = []
  try {
    for (;;) {
      const { done, value = '' } = await reader.read()
      const [first = '', ...others] = value.split('\n')
      rest.push(first)
      const last = others.pop()
      if (last !== undefined || done) {
        for (const line of [rest.join(''), ...others]) if (line.trim() !== '') yield line
        rest = [last ?? '']
      }
      if (done) return
    }
  } finally {
    await reader.cancel()
  }
}

export function customIdIn(line: string): string {
  return (JSON.parse(line) as { custom_id: string }).custom_id
}
