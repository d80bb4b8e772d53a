import { signal } from '@preact/signals'
import { CallForm, TextField } from '#services/console/screens/playground/call/form.tsx'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'
import { Report } from './report.tsx'
import { type Progress, research, run, startResearch } from './run.ts'

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
      send={(options) => startResearch(model.value, question.value.trim(), options)}
      outcome={
        now && (
          <>
            <Steps progress={now.progress} isWhole={!run.isBusy.value && now.report !== ''} />
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
      <TextField label="Question" text={question} rows={3} />
    </CallForm>
  )
}

function Steps({ progress, isWhole }: { readonly progress: readonly Progress[]; readonly isWhole: boolean }) {
  const last = progress.at(-1)
  if (!last) return run.isBusy.value ? <p class="dim">Waiting for a worker…</p> : null
  return (
    <div class="steps">
      <progress max={100} value={isWhole ? 100 : last.percent} aria-label="Progress" />
      <p class="dim">
        Queries: {last.queries}, sources found: {last.sources_found}, read: {last.sources_read}
      </p>
      <ol aria-live="polite">
        {progress.map(({ sequence, phase, message }) => (
          <li key={sequence} class="step-row">
            <span class="phase">{phase}</span>
            <span>{message}</span>
          </li>
        ))}
      </ol>
    </div>
  )
}
