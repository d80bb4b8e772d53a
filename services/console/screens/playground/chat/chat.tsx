import { signal, useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { Icon } from '#services/console/parts/parts.tsx'
import { queryParam } from '#services/console/parts/router.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import {
  type Field,
  filledFields,
  modelFor,
  modelsFor,
  optionsOf,
} from '#services/console/screens/playground/call/catalog.ts'
import {
  CallForm,
  Code,
  ModelChoice,
  Options,
  RunProblem,
  TextField,
} from '#services/console/screens/playground/call/form.tsx'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'
import { type ChatMessage, Conversation, RateMeter } from './conversation.ts'

const OPTIONS = [
  'max_completion_tokens',
  'temperature',
  'top_p',
  'seed',
  'stop',
  'presence_penalty',
  'frequency_penalty',
]

const first = new Conversation()
const second = new Conversation()
const isCompared = signal(false)
const system = signal('')
const values = signal<Readonly<Record<string, string>>>({ max_completion_tokens: '512' })

export function ChatForm() {
  useEffect(() => {
    first.model.value = modelFor('chat', queryParam('model') || first.model.value)
    const others = modelsFor('chat').filter(({ id }) => id !== first.model.value)
    second.model.value = modelFor('chat', second.model.value || (others[0]?.id ?? ''))
  }, [])
  const sides = isCompared.value ? [first, second] : [first]
  const fields = chatFields()
  const sendOptions = { system: system.value.trim(), options: filledFields(fields, values.value) }
  const codeCalls = sides.flatMap(({ run }) => run.calls.value)
  const drafts = sides.flatMap((side) => (side.model.value ? side.draft(sendOptions) : []))
  const send = (text: string) => {
    for (const side of sides) void side.send(text, sendOptions)
  }
  return (
    <>
      <div class="columns">
        <div class="card talk">
          <div class={sides.length > 1 ? 'sides' : undefined}>
            {sides.map((side, nth) => (
              <MessageList key={nth} conversation={side} isOneOfTwo={sides.length > 1} onExample={send} />
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
      <Code calls={codeCalls.length > 0 ? codeCalls : drafts} />
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

/** Returns the request options. `reasoning_effort` is included only if all chosen models are reasoning models. */
function chatFields(): readonly Field[] {
  const sides = isCompared.value ? [first, second] : [first]
  const reasons = sides.every(({ model }) => modelsFor('reasoning').some(({ id }) => id === model.value))
  const names = reasons ? [...OPTIONS, 'reasoning_effort'] : OPTIONS
  return optionsOf('/v1/chat/completions', names)
}

const EXAMPLES = [
  'Explain in two sentences what a message queue is.',
  'Write a haiku about a river in winter.',
  'List three European capitals with their populations as JSON.',
]

interface MessageListProps {
  readonly conversation: Conversation
  readonly isOneOfTwo: boolean
  readonly onExample: (text: string) => void
}

function MessageList({ conversation, isOneOfTwo, onExample }: MessageListProps) {
  const messages = conversation.messages.value
  const end = useRef<HTMLDivElement>(null)
  const length = messages.at(-1)?.content.length ?? 0
  useEffect(() => {
    const scroller = end.current?.parentElement
    if (scroller) scroller.scrollTop = scroller.scrollHeight
  }, [length, messages.length])
  const model = conversation.model.value
  return (
    <div
      class="turns"
      role="log"
      aria-label={isOneOfTwo ? `Conversation with ${model}` : 'Conversation'}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard.
      tabIndex={0}
    >
      {messages.length === 0 && (
        <div class="hint">
          <p class="dim">
            {isOneOfTwo ? `Replies of ${model} appear here.` : 'Send a message to start, or choose an example:'}
          </p>
          {!isOneOfTwo &&
            EXAMPLES.map((text) => (
              <button key={text} type="button" class="small" onClick={() => onExample(text)}>
                {text}
              </button>
            ))}
        </div>
      )}
      {messages.map((message, nth) => (
        <Message
          key={`${message.role}-${nth}`}
          message={message}
          model={model}
          isWriting={nth === messages.length - 1 && message.role === 'assistant' && conversation.run.isBusy.value}
        />
      ))}
      <RunProblem run={conversation.run} />
      <div ref={end} />
    </div>
  )
}

interface MessageProps {
  readonly message: ChatMessage
  readonly model: string
  readonly isWriting: boolean
}

function Message({ message, model, isWriting }: MessageProps) {
  return (
    <div class={`turn ${message.role}`}>
      <p class="who dim">{message.role === 'user' ? 'You' : model}</p>
      <p class="words">
        {message.content}
        {isWriting && <span class="caret" />}
      </p>
      {message.note && <p class="dim took">{message.note}</p>}
    </div>
  )
}

interface ComposerProps {
  readonly isBusy: boolean
  readonly isStarted: boolean
  readonly onSend: (text: string) => void
  readonly onStop: () => void
  readonly onClear: () => void
}

function Composer({ isBusy, isStarted, onSend, onStop, onClear }: ComposerProps) {
  const text = useSignal('')
  const send = () => {
    const sent = text.value.trim()
    if (!sent || isBusy) return
    text.value = ''
    onSend(sent)
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
    event.preventDefault()
    send()
  }
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault()
        send()
      }}
    >
      <textarea
        aria-label="Message"
        placeholder="Type a message. Enter sends, Shift+Enter adds a line."
        rows={3}
        value={text.value}
        onInput={({ currentTarget }) => {
          text.value = currentTarget.value
        }}
        onKeyDown={onKeyDown}
      />
      <div class="composer-actions">
        {isBusy ? (
          <button key="stop" type="button" class="primary" onClick={onStop}>
            <Icon name="stop" /> Stop
          </button>
        ) : (
          <button key="send" type="submit" class="primary" disabled={!text.value.trim()}>
            <Icon name="send" /> Send
          </button>
        )}
        <button type="button" class="small" onClick={onClear} disabled={!isStarted}>
          Clear
        </button>
      </div>
    </form>
  )
}

const PATH = '/v1/completions'
const COMPLETION_OPTIONS = [
  'max_tokens',
  'temperature',
  'top_p',
  'seed',
  'stop',
  'presence_penalty',
  'frequency_penalty',
]

interface Chunk {
  readonly choices?: readonly { readonly text: string }[]
  readonly usage?: { readonly completion_tokens: number } | null
}

const run = new Run()
const model = signal('')
const prompt = signal('Once upon a time')
const completionValues = signal<Readonly<Record<string, string>>>({ max_tokens: '64' })
const completion = signal({ prompt: '', text: '', note: '' })

export function CompletionsForm() {
  return (
    <CallForm
      run={run}
      model={{ capability: 'completions', chosen: model }}
      fields={optionsOf(PATH, COMPLETION_OPTIONS)}
      values={completionValues}
      verb="Complete"
      isReady={prompt.value !== ''}
      send={complete}
      draft={completionOf}
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

function completionOf(options: Readonly<Record<string, unknown>>): Call {
  const sent = { model: model.value, prompt: prompt.value, ...options }
  const body = { ...sent, stream: true, stream_options: { include_usage: true } }
  return { name: model.value, path: PATH, method: 'completions', body }
}

async function complete(options: Readonly<Record<string, unknown>>): Promise<void> {
  const sentPrompt = prompt.value
  const call = completionOf(options)
  const meter = new RateMeter()
  completion.value = { prompt: sentPrompt, text: '', note: '' }
  const end = await run.start([call], async (abort) => {
    for await (const { choices = [], usage } of streamed<Chunk>(call, abort, run)) {
      const added = choices[0]?.text ?? ''
      meter.record(added, usage?.completion_tokens)
      completion.value = { ...completion.value, text: completion.value.text + added }
    }
  })
  if (end !== 'failed')
    completion.value = { ...completion.value, note: end === 'stopped' ? 'stopped' : meter.summary() }
}
