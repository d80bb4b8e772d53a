import { signal } from '@preact/signals'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'
import { RateMeter } from '#services/console/screens/playground/chat/conversation.ts'

const PATH = '/v1/completions'
const OPTIONS = ['max_tokens', 'temperature', 'top_p', 'seed', 'stop', 'presence_penalty', 'frequency_penalty']

interface Chunk {
  readonly choices?: readonly { readonly text: string }[]
  readonly usage?: { readonly completion_tokens: number } | null
}

const run = new Run()
const model = signal('')
const prompt = signal('Once upon a time')
const values = signal<Readonly<Record<string, string>>>({ max_tokens: '64' })
const completion = signal({ prompt: '', text: '', note: '' })

export function CompletionsForm() {
  return (
    <CallForm
      run={run}
      model={{ capability: 'completions', chosen: model }}
      fields={optionsOf(PATH, OPTIONS)}
      values={values}
      verb="Complete"
      isReady={prompt.value !== ''}
      send={complete}
      outcome={<Completion />}
    >
      <TextField label="Prompt" text={prompt} rows={6} />
    </CallForm>
  )
}

function Completion() {
  const { prompt: sentPrompt, text, note } = completion.value
  if (!sentPrompt) return null
  return (
    <div aria-live="polite">
      <p class="output written">
        <span class="dim">{sentPrompt}</span>
        {text}
        {run.isBusy.value && <span class="caret" />}
      </p>
      <p class="dim took">{note}</p>
    </div>
  )
}

async function complete(options: Readonly<Record<string, unknown>>): Promise<void> {
  const sentPrompt = prompt.value
  const body = {
    model: model.value,
    prompt: sentPrompt,
    ...options,
    stream: true,
    stream_options: { include_usage: true },
  }
  const call: Call = { name: model.value, path: PATH, method: 'completions', body }
  const meter = new RateMeter()
  completion.value = { prompt: sentPrompt, text: '', note: '' }
  const end = await run.start([call], async (abort) => {
    for await (const { choices = [], usage } of streamed<Chunk>(call, abort)) {
      const added = choices[0]?.text ?? ''
      meter.record(added, usage?.completion_tokens)
      completion.value = { ...completion.value, text: completion.value.text + added }
    }
  })
  if (end !== 'failed')
    completion.value = { ...completion.value, note: end === 'stopped' ? 'stopped' : meter.summary() }
}
