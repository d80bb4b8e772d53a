import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Call } from './call/call.ts'
import { optionsOf } from './call/catalog.ts'
import { CallForm, nonEmptyLines, TextField } from './call/form.tsx'
import { Run } from './call/run.ts'

const PATH = '/v1/embeddings'
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

interface HeatMapProps {
  readonly lines: readonly string[]
  readonly vectors: readonly (readonly number[])[]
}

function HeatMap({ lines, vectors }: HeatMapProps) {
  const rows = vectors.map((a) => vectors.map((b) => cosine(a, b)))
  const nearest = nearestPair(rows)
  return (
    <>
      {nearest && (
        <p>
          Most similar: {nearest.a + 1} and {nearest.b + 1} (cosine {nearest.value.toFixed(2)}).
        </p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard. */}
      <section class="heat" tabIndex={0} aria-label="Similarities">
        <table>
          <caption class="visually-hidden">Cosine similarity of each pair of lines</caption>
          <thead>
            <tr>
              <td />
              {lines.map((line, nth) => (
                <th key={`${nth}-${line}`} scope="col" title={line}>
                  {nth + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, nth) => (
              <tr key={`${nth}-${lines[nth]}`}>
                <th scope="row" title={lines[nth]}>
                  <span class="nth">{nth + 1}</span> {lines[nth]}
                </th>
                {row.map((value, other) => (
                  <td
                    key={`${other}-${lines[other]}`}
                    class="cell"
                    style={{ '--share': Math.max(0, value).toFixed(3) }}
                    title={`${nth + 1} and ${other + 1}: ${value.toFixed(4)}`}
                  >
                    {value.toFixed(2)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  )
}

/** Returns the cosine similarity, -1 to 1. 0 if one of the vectors is zero. */
function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = product(a, b)
  const lengths = Math.sqrt(product(a, a) * product(b, b))
  return lengths === 0 ? 0 : dot / lengths
}

function nearestPair(
  rows: readonly (readonly number[])[],
): { readonly a: number; readonly b: number; readonly value: number } | undefined {
  const pairs = rows.flatMap((row, a) => row.slice(0, a).map((value, b) => ({ a: b, b: a, value })))
  return pairs.toSorted((one, other) => other.value - one.value)[0]
}

function product(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, nth) => sum + value * (b[nth] ?? 0), 0)
}
