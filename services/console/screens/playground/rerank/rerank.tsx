import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { askJson } from '#services/console/api/client.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Code } from '#services/console/screens/playground/call/code.tsx'
import { ModelChoice } from '#services/console/screens/playground/call/models.tsx'
import { Options } from '#services/console/screens/playground/call/options.tsx'
import { ProblemOf } from '#services/console/screens/playground/call/problem.tsx'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { fieldsOf, filledIn } from '#services/console/screens/playground/call/schema.ts'
import { Send } from '#services/console/screens/playground/call/send.tsx'
import { modelFor, served } from '#services/console/screens/playground/served.ts'

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

/** Texts, sorted by how near they are to a query. */
export function RerankForm() {
  useEffect(() => {
    model.value = modelFor('rerank', model.value)
  }, [])
  const fields = served.value ? fieldsOf(served.value.reference, PATH, ['top_n']) : []
  const documents = text.value.split('\n').flatMap((line) => line.trim() || [])
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void rank(documents, filledIn(fields, values.value))
          }}
        >
          <label>
            <span>Query</span>
            <input
              value={query.value}
              onInput={({ currentTarget }) => {
                query.value = currentTarget.value
              }}
            />
          </label>
          <label>
            <span>Documents, one a line</span>
            <textarea
              rows={6}
              value={text.value}
              onInput={({ currentTarget }) => {
                text.value = currentTarget.value
              }}
            />
          </label>
          <div class="actions">
            <Send run={run} label="Rank" isReady={documents.length > 0 && query.value !== '' && model.value !== ''} />
          </div>
          <ProblemOf run={run} />
          <Ranked />
        </form>
        <Options fields={fields} values={values}>
          <ModelChoice capability="rerank" model={model} />
        </Options>
      </div>
      <Code calls={run.calls.value} />
    </>
  )
}

function Ranked() {
  if (ranked.value.length === 0) return null
  return (
    <ol class="ranked" aria-label="Nearest first">
      {ranked.value.map(({ line, score }, nth) => (
        <li key={`${nth}-${line}`}>
          <span>{line}</span>
          <meter min={0} max={1} value={Math.max(0, score)} aria-label={`Similarity of: ${line}`} />
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
    const { results } = await askJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    ranked.value = results.map(({ index, relevance_score: score }) => ({ line: documents[index] ?? '', score }))
  })
}
