import { signal } from '@preact/signals'
import { CallForm, Words } from '#services/console/screens/playground/call/form.tsx'
import { optionsOf } from '#services/console/screens/playground/served.ts'
import { Report } from './report.tsx'
import { investigate, type Progress, research, run } from './run.ts'

const OPTIONS = ['reasoning_effort', 'max_sources', 'max_tool_calls', 'max_duration_seconds', 'max_tokens']

const model = signal('')
const question = signal('How are webhooks signed?')
const values = signal<Readonly<Record<string, string>>>({ reasoning_effort: 'low' })

/** Researches a question and shows the progress, then the report with its citations. */
export function ResearchForm() {
  const now = research.value
  return (
    <CallForm
      run={run}
      model={{ capability: 'deep_research', chosen: model }}
      fields={optionsOf('/v1/deep-research', OPTIONS)}
      values={values}
      shown={3}
      verb="Research"
      isReady={question.value.trim() !== ''}
      send={(options) => investigate(model.value, question.value.trim(), options)}
      outcome={
        now && (
          <>
            <Steps of={now.progress} isWhole={!run.isBusy.value && now.report !== ''} />
            <p class="dim took">{now.note}</p>
          </>
        )
      }
      hint={
        <p class="dim">
          Without a search backend, sources come from the folder RESEARCH_CORPUS or, if unset, from the Sluice
          documentation.
        </p>
      }
      below={now?.report && <Report text={now.report} citations={now.citations} />}
    >
      <Words label="Question" of={question} rows={3} />
    </CallForm>
  )
}

function Steps({ of, isWhole }: { readonly of: readonly Progress[]; readonly isWhole: boolean }) {
  const last = of.at(-1)
  if (!last) return run.isBusy.value ? <p class="dim">Waiting for a worker…</p> : null
  return (
    <div class="steps">
      <progress max={100} value={isWhole ? 100 : last.percent} aria-label="Progress" />
      <p class="dim">
        Queries: {last.queries}, sources found: {last.sources_found}, read: {last.sources_read}
      </p>
      <ol aria-live="polite">
        {of.map(({ sequence, phase, message }) => (
          <li key={sequence} class="step-row">
            <span class="phase">{phase}</span>
            <span>{message}</span>
          </li>
        ))}
      </ol>
    </div>
  )
}
