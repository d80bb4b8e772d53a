import { signal } from '@preact/signals'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'
import { RateMeter } from '#services/console/screens/playground/chat/conversation.ts'

/** The new text of a stream event. */
export interface Piece {
  readonly text?: string | undefined
  /** Total tokens of the answer, if the event has them. */
  readonly tokens?: number | undefined
}

interface TextCall<Event> {
  readonly path: string
  readonly method: 'responses' | 'messages'
  readonly capability: string
  /** Option names in display order, and their initial values. */
  readonly options: readonly string[]
  readonly values: Readonly<Record<string, string>>
  readonly input: string
  /** Request fields that carry the input. */
  readonly toRequest: (input: string) => Readonly<Record<string, unknown>>
  readonly pieceOf: (event: Event) => Piece
}

/** Creates a form component for an endpoint that streams text. Input and answer last as long as the tab. */
export function textForm<Event>({
  path,
  method,
  capability,
  options,
  toRequest,
  pieceOf,
  ...initial
}: TextCall<Event>) {
  const run = new Run()
  const model = signal('')
  const input = signal(initial.input)
  const values = signal(initial.values)
  const answer = signal({ text: '', note: '' })

  async function send(filled: Readonly<Record<string, unknown>>): Promise<void> {
    const body = { model: model.value, ...toRequest(input.value), ...filled, stream: true }
    const call: Call = { name: model.value, path, method, body }
    const meter = new RateMeter()
    answer.value = { text: '', note: '' }
    const end = await run.start([call], async (abort) => {
      for await (const event of streamed<Event>(call, abort)) {
        const { text = '', tokens } = pieceOf(event)
        meter.record(text, tokens)
        if (text) answer.value = { text: answer.value.text + text, note: '' }
      }
    })
    if (end !== 'failed') answer.value = { ...answer.value, note: end === 'stopped' ? 'stopped' : meter.summary() }
  }

  function Answer() {
    const { text, note } = answer.value
    if (!text && !run.isBusy.value && !note) return null
    return (
      <div aria-live="polite">
        <p class="output written">
          {text}
          {run.isBusy.value && <span class="caret" />}
        </p>
        <p class="dim took">{note}</p>
      </div>
    )
  }

  return function TextForm() {
    return (
      <CallForm
        run={run}
        model={{ capability, chosen: model }}
        fields={optionsOf(path, options)}
        values={values}
        verb="Send"
        isReady={input.value !== ''}
        send={send}
        outcome={<Answer />}
      >
        <TextField label="Input" text={input} rows={6} />
      </CallForm>
    )
  }
}
