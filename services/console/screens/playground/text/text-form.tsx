import { signal } from '@preact/signals'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, Words } from '#services/console/screens/playground/call/form.tsx'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'
import { Pace } from '#services/console/screens/playground/chat/conversation.ts'
import { optionsOf } from '#services/console/screens/playground/served.ts'

/** What one event of a stream adds. */
export interface Piece {
  readonly text?: string | undefined
  /** Of the whole answer, where the event tells. */
  readonly tokens?: number | undefined
}

interface TextCall<Event> {
  readonly path: string
  readonly method: 'responses' | 'messages'
  /** What a model must be able to do. */
  readonly capability: string
  /** Names of the options, in their order; and what is filled in at first. */
  readonly options: readonly string[]
  readonly values: Readonly<Record<string, string>>
  /** What stands in the form at first. */
  readonly words: string
  /** The fields that ask it. */
  readonly asking: (words: string) => Readonly<Record<string, unknown>>
  readonly pieceOf: (event: Event) => Piece
}

/** A form for an endpoint that answers words with a stream of text. @returns Its component, which keeps what was done in this tab */
export function textForm<Event>({ path, method, capability, options, asking, pieceOf, ...first }: TextCall<Event>) {
  const run = new Run()
  const model = signal('')
  const words = signal(first.words)
  const values = signal(first.values)
  const answer = signal({ text: '', note: '' })

  async function send(filled: Readonly<Record<string, unknown>>): Promise<void> {
    const body = { model: model.value, ...asking(words.value), ...filled, stream: true }
    const call: Call = { name: model.value, path, method, body }
    const pace = new Pace()
    answer.value = { text: '', note: '' }
    const end = await run.start([call], async (abort) => {
      for await (const event of streamed<Event>(call, abort)) {
        const { text = '', tokens } = pieceOf(event)
        pace.saw(text, tokens)
        if (text) answer.value = { text: answer.value.text + text, note: '' }
      }
    })
    if (end !== 'failed') answer.value = { ...answer.value, note: end === 'stopped' ? 'stopped' : pace.told() }
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
        isReady={words.value !== ''}
        send={send}
        outcome={<Answer />}
      >
        <Words label="Input" of={words} rows={6} />
      </CallForm>
    )
  }
}
