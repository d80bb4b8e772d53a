import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, nonEmptyLines, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'
import { HeatMap } from './heat-map.tsx'

const PATH = '/v1/embeddings'
/** Maximum lines of a readable heat map. */
const LINES_MAX = 50
const EXAMPLE = `How do I get my money back?
Refunds take five days.
The cat sleeps on the sofa.
A kitten naps on the couch.`

interface Answer {
  readonly data: readonly { readonly index: number; readonly embedding: readonly number[] }[]
  readonly usage: { readonly prompt_tokens: number }
}

const run = new Run()
const model = signal('')
const text = signal(EXAMPLE)
const values = signal<Readonly<Record<string, string>>>({})
const embedded = signal<
  { lines: readonly string[]; vectors: readonly (readonly number[])[]; note: string } | undefined
>(undefined)

/** Embeds lines and shows the similarity of each pair. */
export function EmbeddingsForm() {
  const lines = nonEmptyLines(text.value)
  const isTooMany = lines.length > LINES_MAX
  return (
    <CallForm
      run={run}
      model={{ capability: 'embeddings', chosen: model }}
      fields={optionsOf(PATH, ['dimensions'])}
      values={values}
      verb="Compare"
      isReady={lines.length > 0 && !isTooMany}
      send={(options) => embed(lines, options)}
      extra={
        <span class={isTooMany ? 'bad' : 'dim'}>
          {isTooMany ? `${lines.length} lines; the maximum is ${LINES_MAX}.` : `${lines.length} lines`}
        </span>
      }
      outcome={<SimilarityResult />}
    >
      <TextField label="Texts, one per line" text={text} rows={6} />
    </CallForm>
  )
}

function SimilarityResult() {
  if (!embedded.value) return null
  const { lines, vectors, note } = embedded.value
  return (
    <>
      <HeatMap lines={lines} vectors={vectors} />
      <p class="dim took">{note}</p>
    </>
  )
}

async function embed(input: readonly string[], options: Readonly<Record<string, unknown>>): Promise<void> {
  const body = { model: model.value, input, ...options }
  const call: Call = { name: model.value, path: PATH, method: 'embeddings', body }
  const startedAt = performance.now()
  await run.start([call], async (abort) => {
    const { data, usage } = await fetchJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    const vectors = data.toSorted((a, b) => a.index - b.index).map(({ embedding }) => embedding)
    const ms = Math.round(performance.now() - startedAt)
    const note = `${usage.prompt_tokens} tokens in ${ms} ms · ${vectors[0]?.length ?? 0} dimensions`
    embedded.value = { lines: input, vectors, note }
  })
}
