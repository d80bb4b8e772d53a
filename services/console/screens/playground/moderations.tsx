import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Call } from './call/call.ts'
import { type Field, modelsFor } from './call/catalog.ts'
import { CallForm, nonEmptyLines, TextField } from './call/form.tsx'
import { Run } from './call/run.ts'

const PATH = '/v1/moderations'
const NAMED_MAX = 3

interface Answer {
  readonly model: string
  readonly results: readonly {
    readonly flagged: boolean
    readonly category_scores: Readonly<Record<string, number>>
  }[]
}

interface Moderated {
  readonly line: string
  readonly isFlagged: boolean
  /** Categories sorted by score, highest first. */
  readonly scores: readonly (readonly [category: string, score: number])[]
}

const run = new Run()
const text = signal('The morning is lovely.\nYou are an ass.')
const values = signal<Readonly<Record<string, string>>>({})
const moderated = signal<readonly Moderated[]>([])

/** Moderates texts line by line. Without a moderation model, the service uses its word list. */
export function ModerationsForm() {
  const lines = nonEmptyLines(text.value)
  return (
    <CallForm
      run={run}
      fields={[modelField()]}
      values={values}
      verb="Check"
      isReady={lines.length > 0}
      send={(options) => moderate(lines, options)}
      outcome={<Results />}
    >
      <TextField label="Texts, one per line" text={text} rows={6} />
    </CallForm>
  )
}

function modelField(): Field {
  const choices = modelsFor('moderation').map(({ id }) => id)
  const rest = { min: undefined, max: undefined, step: 1, hint: '' } as const
  return { name: 'model', label: 'Model', kind: 'choice', choices, ...rest }
}

function Results() {
  if (moderated.value.length === 0) return null
  return (
    <ul class="ranked" aria-label="Results">
      {moderated.value.map(({ line, isFlagged, scores }, nth) => (
        <li key={`${nth}-${line}`}>
          <span>{line}</span>
          <strong class={isFlagged ? 'bad' : 'dim'}>{isFlagged ? 'flagged' : 'not flagged'}</strong>
          <span class="dim">{scores.map(([category, score]) => ` · ${category} ${score.toFixed(2)}`)}</span>
        </li>
      ))}
    </ul>
  )
}

async function moderate(input: readonly string[], options: Readonly<Record<string, unknown>>): Promise<void> {
  const body = { input, ...options }
  const call: Call = { name: 'moderations', path: PATH, method: 'moderations', body }
  await run.start([call], async (abort) => {
    const { results } = await fetchJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    moderated.value = results.map(({ flagged, category_scores }, nth) => {
      const scores = Object.entries(category_scores).filter(([, score]) => score > 0)
      const highest = scores.toSorted(([, a], [, b]) => b - a).slice(0, NAMED_MAX)
      return { line: input[nth] ?? '', isFlagged: flagged, scores: highest }
    })
  })
}
