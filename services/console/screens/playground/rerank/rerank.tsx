import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, nonEmptyLines, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'

const PATH = '/v1/rerank'

interface Answer {
  readonly results: readonly { readonly index: number; readonly relevance_score: number }[]
}

const run = new Run()
const model = signal('')
const query = signal('How do I get my money back?')
const text = signal('We sell tea.\nRefunds take five days.\nThe shop opens at nine.')
const values = signal<Readonly<Record<string, string>>>({})
const ranked = signal<readonly { readonly line: string; readonly score: number }[]>([])

export function RerankForm() {
  const documents = nonEmptyLines(text.value)
  return (
    <CallForm
      run={run}
      model={{ capability: 'rerank', chosen: model }}
      fields={optionsOf(PATH, ['top_n'])}
      values={values}
      verb="Rank"
      isReady={documents.length > 0 && query.value !== ''}
      send={(options) => rank(documents, options)}
      outcome={<Ranked />}
    >
      <TextField label="Query" text={query} />
      <TextField label="Documents, one per line" text={text} rows={6} />
    </CallForm>
  )
}

function Ranked() {
  if (ranked.value.length === 0) return null
  return (
    <ol class="ranked" aria-label="Most relevant first">
      {ranked.value.map(({ line, score }, nth) => (
        <li key={`${nth}-${line}`}>
          <span>{line}</span>
          <meter min={0} max={1} value={Math.max(0, score)} aria-label={`Relevance of: ${line}`} />
          <span class="dim">{score.toFixed(3)}</span>
        </li>
      ))}
    </ol>
  )
}

async function rank(documents: readonly string[], options: Readonly<Record<string, unknown>>): Promise<void> {
  const body = { model: model.value, query: query.value, documents, ...options }
  const call: Call = { name: model.value, path: PATH, body }
  await run.start([call], async (abort) => {
    const { results } = await fetchJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    ranked.value = results.map(({ index, relevance_score: score }) => ({ line: documents[index] ?? '', score }))
  })
}
