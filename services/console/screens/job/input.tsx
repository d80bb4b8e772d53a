import { useSignal } from '@preact/signals'
import { fetchJson, type JobInput, type Step, type StepPage } from '#services/console/api/client.ts'
import { dateTimeText } from '#services/console/api/clock.ts'
import { CopyButton, ErrorText, useAction } from '#services/console/parts/parts.tsx'

const SHOWN_CHARS_MAX = 20_000

export function Input({ id }: { readonly id: string }) {
  const input = useSignal<JobInput | undefined>(undefined)
  const { problem, run } = useAction()
  const read = () =>
    run(async () => {
      input.value ??= await fetchJson<JobInput>(`/v1/jobs/${id}/input`)
    })
  return (
    <details class="card" onToggle={({ currentTarget }) => currentTarget.open && void read()}>
      <summary class="folded">
        <h2>Input</h2>
      </summary>
      <ErrorText text={problem.value} />
      {input.value ? <InputText jobInput={input.value} /> : !problem.value && <p class="dim">Loading…</p>}
    </details>
  )
}

function InputText({ jobInput }: { readonly jobInput: JobInput }) {
  const { input, input_cut: cut, attachments } = jobInput
  if (input === null && !cut)
    return <p class="dim">The parent job made this request. The steps of the parent show it.</p>
  const text = cut ? cut.beginning : JSON.stringify(input, null, 2)
  return (
    <>
      {cut && <p class="dim">{cut.length.toLocaleString('en')} bytes in total. Beginning of the input:</p>}
      <pre class="output">{shown(text)}</pre>
      {attachments > 0 && <p class="dim">{attachments === 1 ? '1 attached file' : `${attachments} attached files`}</p>}
      <p>
        <CopyButton text={text} label="Copy" />
      </p>
    </>
  )
}

export function Steps({ id, count }: { readonly id: string; readonly count: number }) {
  const steps = useSignal<readonly Step[]>([])
  const { problem, isBusy, run } = useAction()
  const more = () =>
    run(async () => {
      const after = steps.value.at(-1)?.number ?? 0
      const page = await fetchJson<StepPage>(`/v1/jobs/${id}/steps?after=${after}`)
      steps.value = [...steps.value, ...page.data]
    })
  return (
    <details class="card" onToggle={({ currentTarget }) => currentTarget.open && !steps.value[0] && void more()}>
      <summary class="folded">
        <h2>Steps</h2> <span class="dim">{count.toLocaleString('en')}</span>
      </summary>
      <ErrorText text={problem.value} />
      <ol class="steps">
        {steps.value.map((step) => (
          <StepRow key={step.number} step={step} />
        ))}
      </ol>
      {steps.value.length > 0 && steps.value.length < count && (
        <button type="button" class="small" disabled={isBusy.value} onClick={() => void more()}>
          Show more
        </button>
      )}
    </details>
  )
}

function StepRow({ step }: { readonly step: Step }) {
  const { number, kind, input, input_cut: cut, output, cost, done_at } = step
  const costs = Object.entries((cost ?? {}) as Record<string, number>).map(
    ([unit, amount]) => `${amount.toLocaleString('en')} ${unit.replaceAll('_', ' ')}`,
  )
  return (
    <li>
      <details>
        <summary class="folded">
          {number}. {kind} <span class="dim">{[...costs, dateTimeText(done_at)].join(' · ')}</span>
        </summary>
        <pre class="output">{shown(cut ? cut.beginning : JSON.stringify(input, null, 2))}</pre>
        <pre class="output">{shown(JSON.stringify(output, null, 2))}</pre>
      </details>
    </li>
  )
}

function shown(text = 'null'): string {
  if (text.length <= SHOWN_CHARS_MAX) return text
  return `${text.slice(0, SHOWN_CHARS_MAX)}\n… ${(text.length - SHOWN_CHARS_MAX).toLocaleString('en')} more characters`
}
