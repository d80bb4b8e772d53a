import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Code } from '#services/console/screens/playground/call/code.tsx'
import { ModelChoice } from '#services/console/screens/playground/call/models.tsx'
import { Options } from '#services/console/screens/playground/call/options.tsx'
import { ProblemOf } from '#services/console/screens/playground/call/problem.tsx'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'
import { fieldsOf, filledIn } from '#services/console/screens/playground/call/schema.ts'
import { Send } from '#services/console/screens/playground/call/send.tsx'
import { Pace } from '#services/console/screens/playground/chat/conversation.ts'
import { modelFor, served } from '#services/console/screens/playground/served.ts'

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
/** The prompt that was sent, and what came after it. */
const written = signal({ prompt: '', text: '', note: '' })

/** A raw prompt, and how a model goes on. */
export function CompletionsForm() {
  useEffect(() => {
    model.value = modelFor('completions', model.value)
  }, [])
  const fields = served.value ? fieldsOf(served.value.reference, PATH, OPTIONS) : []
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void complete(filledIn(fields, values.value))
          }}
        >
          <label>
            <span>Prompt</span>
            <textarea
              rows={6}
              value={prompt.value}
              onInput={({ currentTarget }) => {
                prompt.value = currentTarget.value
              }}
            />
          </label>
          <div class="actions">
            <Send run={run} label="Complete" isReady={prompt.value !== '' && model.value !== ''} />
          </div>
          <ProblemOf run={run} />
          {written.value.prompt && (
            <div aria-live="polite">
              <p class="output written">
                <span class="dim">{written.value.prompt}</span>
                {written.value.text}
                {run.isBusy.value && <span class="caret" />}
              </p>
              <p class="dim took">{written.value.note}</p>
            </div>
          )}
        </form>
        <Options fields={fields} values={values}>
          <ModelChoice capability="completions" model={model} />
        </Options>
      </div>
      <Code calls={run.calls.value} />
    </>
  )
}

async function complete(options: Readonly<Record<string, unknown>>): Promise<void> {
  const asked = prompt.value
  const body = { model: model.value, prompt: asked, ...options, stream: true, stream_options: { include_usage: true } }
  const call: Call = { name: model.value, path: PATH, method: 'completions', body }
  const pace = new Pace()
  written.value = { prompt: asked, text: '', note: '' }
  const end = await run.start([call], async (abort) => {
    for await (const { choices = [], usage } of streamed<Chunk>(call, abort)) {
      const added = choices[0]?.text ?? ''
      pace.saw(added, usage?.completion_tokens)
      written.value = { ...written.value, text: written.value.text + added }
    }
  })
  if (end !== 'failed') written.value = { ...written.value, note: end === 'stopped' ? 'stopped' : pace.told() }
}
