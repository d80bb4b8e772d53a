import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { Code } from '#services/console/screens/playground/call/code.tsx'
import { ModelChoice } from '#services/console/screens/playground/call/models.tsx'
import { Options } from '#services/console/screens/playground/call/options.tsx'
import { ProblemOf } from '#services/console/screens/playground/call/problem.tsx'
import { fieldsOf, filledIn } from '#services/console/screens/playground/call/schema.ts'
import { Send } from '#services/console/screens/playground/call/send.tsx'
import { modelFor, served } from '#services/console/screens/playground/served.ts'
import { Report } from './report.tsx'
import { investigate, type Progress, research, run } from './run.ts'

const OPTIONS = ['reasoning_effort', 'max_sources', 'max_tool_calls', 'max_duration_seconds', 'max_tokens']

const model = signal('')
const question = signal('How are webhooks signed?')
const values = signal<Readonly<Record<string, string>>>({ reasoning_effort: 'low' })

/** A question, how its research goes, and the report with each citation beside its quote. */
export function ResearchForm() {
  useEffect(() => {
    model.value = modelFor('deep_research', model.value)
  }, [])
  const fields = served.value ? fieldsOf(served.value.reference, '/v1/deep-research', OPTIONS) : []
  const now = research.value
  const isReady = question.value.trim() !== '' && model.value !== ''
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void investigate(model.value, question.value.trim(), filledIn(fields, values.value))
          }}
        >
          <label>
            <span>Question</span>
            <textarea
              rows={3}
              value={question.value}
              onInput={({ currentTarget }) => {
                question.value = currentTarget.value
              }}
            />
          </label>
          <div class="actions">
            <Send run={run} label="Research" isReady={isReady} />
          </div>
          <ProblemOf run={run} />
          {now && <Steps of={now.progress} isWhole={!run.isBusy.value && now.report !== ''} />}
          {now && <p class="dim took">{now.note}</p>}
        </form>
        <Options fields={fields} values={values} shown={3}>
          <ModelChoice capability="deep_research" model={model} />
          <p class="dim">
            Without search backends it reads the folder of RESEARCH_CORPUS, or this project's own pages.
          </p>
        </Options>
      </div>
      {now?.report && <Report text={now.report} citations={now.citations} />}
      <Code calls={run.calls.value} />
    </>
  )
}

function Steps({ of, isWhole }: { readonly of: readonly Progress[]; readonly isWhole: boolean }) {
  const last = of.at(-1)
  if (!last) return run.isBusy.value ? <p class="dim">It waits for a worker…</p> : null
  return (
    <div class="steps">
      <progress max={100} value={isWhole ? 100 : last.percent} aria-label="Progress" />
      <p class="dim">
        Queries: {last.queries}, sources found: {last.sources_found}, read: {last.sources_read}
      </p>
      <ol aria-live="polite">
        {of.map(({ sequence, phase, message }) => (
          <li key={sequence}>
            <span class="phase">{phase}</span> {message}
          </li>
        ))}
      </ol>
    </div>
  )
}
