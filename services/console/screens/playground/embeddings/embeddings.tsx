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
import { HeatMap } from './heat-map.tsx'

const PATH = '/v1/embeddings'
/** Lines of which a map can still be read. */
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
const found = signal<{ lines: readonly string[]; vectors: readonly (readonly number[])[]; note: string } | undefined>(
  undefined,
)

/** Lines, and how near each is to each other. */
export function EmbeddingsForm() {
  useEffect(() => {
    model.value = modelFor('embeddings', model.value)
  }, [])
  const fields = served.value ? fieldsOf(served.value.reference, PATH, ['dimensions']) : []
  const lines = linesOf(text.value)
  const isTooMany = lines.length > LINES_MAX
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void embed(lines, filledIn(fields, values.value))
          }}
        >
          <label>
            <span>Texts, one a line</span>
            <textarea
              rows={6}
              value={text.value}
              onInput={({ currentTarget }) => {
                text.value = currentTarget.value
              }}
            />
          </label>
          <div class="actions">
            <Send run={run} label="Compare" isReady={lines.length > 0 && !isTooMany && model.value !== ''} />
            <span class={isTooMany ? 'bad' : 'dim'}>
              {isTooMany ? `${lines.length} lines: a map shows ${LINES_MAX} at most.` : `${lines.length} lines`}
            </span>
          </div>
          <ProblemOf run={run} />
          {found.value && (
            <>
              <HeatMap lines={found.value.lines} vectors={found.value.vectors} />
              <p class="dim took">{found.value.note}</p>
            </>
          )}
        </form>
        <Options fields={fields} values={values}>
          <ModelChoice capability="embeddings" model={model} />
        </Options>
      </div>
      <Code calls={run.calls.value} />
    </>
  )
}

/** The lines of a text that say something. */
function linesOf(lines: string): readonly string[] {
  return lines.split('\n').flatMap((line) => line.trim() || [])
}

async function embed(input: readonly string[], options: Readonly<Record<string, unknown>>): Promise<void> {
  const body = { model: model.value, input, ...options }
  const call: Call = { name: model.value, path: PATH, method: 'embeddings', body }
  const startedAt = performance.now()
  await run.start([call], async (abort) => {
    const { data, usage } = await askJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    const vectors = data.toSorted((a, b) => a.index - b.index).map(({ embedding }) => embedding)
    const ms = Math.round(performance.now() - startedAt)
    const note = `${usage.prompt_tokens} tokens in ${ms} ms · ${vectors[0]?.length ?? 0} numbers each`
    found.value = { lines: input, vectors, note }
  })
}
