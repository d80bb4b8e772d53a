import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { queryParam } from '#services/console/router.ts'
import { Code } from '#services/console/screens/playground/call/code.tsx'
import { ModelChoice } from '#services/console/screens/playground/call/model-choice.tsx'
import { Options } from '#services/console/screens/playground/call/options.tsx'
import { type Field, filledFields } from '#services/console/screens/playground/call/schema.ts'
import { modelFor, modelsFor, optionsOf } from '#services/console/screens/playground/catalog.ts'
import { Conversation } from './conversation.ts'
import { Composer, MessageList } from './messages.tsx'

const OPTIONS = ['max_tokens', 'temperature', 'top_p', 'seed', 'stop', 'presence_penalty', 'frequency_penalty']

const first = new Conversation()
const second = new Conversation()
const isCompared = signal(false)
const system = signal('')
const values = signal<Readonly<Record<string, string>>>({ max_tokens: '512' })

/** A conversation with one model, or with two side by side. The conversation lasts as long as the tab. */
export function ChatForm() {
  useEffect(() => {
    first.model.value = modelFor('chat', queryParam('model') || first.model.value)
    const others = modelsFor('chat').filter(({ id }) => id !== first.model.value)
    second.model.value = modelFor('chat', second.model.value || (others[0]?.id ?? ''))
  }, [])
  const sides = isCompared.value ? [first, second] : [first]
  const fields = chatFields()
  const send = (text: string) => {
    const sendOptions = { system: system.value.trim(), options: filledFields(fields, values.value) }
    for (const side of sides) void side.send(text, sendOptions)
  }
  return (
    <>
      <div class="columns">
        <div class="card talk">
          <div class={sides.length > 1 ? 'sides' : undefined}>
            {sides.map((side, nth) => (
              <MessageList key={nth} conversation={side} isOneOfTwo={sides.length > 1} />
            ))}
          </div>
          <Composer
            isBusy={sides.some(({ run }) => run.isBusy.value)}
            onSend={send}
            onStop={() => {
              for (const { run } of sides) run.stop()
            }}
            onClear={() => {
              for (const side of [first, second]) side.clear()
            }}
            isStarted={sides.some(({ messages }) => messages.value.length > 0)}
          />
        </div>
        <Options fields={fields} values={values} shown={2}>
          <Models />
          <label>
            <span>System prompt</span>
            <textarea
              rows={3}
              placeholder="Instructions for the model"
              value={system.value}
              onInput={({ currentTarget }) => {
                system.value = currentTarget.value
              }}
            />
          </label>
        </Options>
      </div>
      <Code calls={sides.flatMap(({ run }) => run.calls.value)} />
    </>
  )
}

function Models() {
  const toggle = () => {
    second.clear()
    isCompared.value = !isCompared.value
    if (isCompared.value) second.messages.value = first.messages.value
  }
  return (
    <>
      <ModelChoice capability="chat" model={first.model} />
      <label class="check">
        <input type="checkbox" checked={isCompared.value} onChange={toggle} disabled={first.run.isBusy.value} />
        <span>Compare with another model</span>
      </label>
      {isCompared.value && <ModelChoice capability="chat" model={second.model} label="Second model" />}
    </>
  )
}

/** The option `reasoning_effort` is shown for reasoning models only. */
function chatFields(): readonly Field[] {
  const sides = isCompared.value ? [first, second] : [first]
  const reasons = sides.every(({ model }) => modelsFor('reasoning').some(({ id }) => id === model.value))
  const names = reasons ? [...OPTIONS, 'reasoning_effort'] : OPTIONS
  return optionsOf('/v1/chat/completions', names)
}
