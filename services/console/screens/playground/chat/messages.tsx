import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { Icon } from '#services/console/parts/icon.tsx'
import { RunProblem } from '#services/console/screens/playground/call/problem.tsx'
import type { ChatMessage, Conversation } from './conversation.ts'

export function MessageList({
  conversation,
  isOneOfTwo,
}: {
  readonly conversation: Conversation
  readonly isOneOfTwo: boolean
}) {
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
        <p class="dim hint">
          {isOneOfTwo
            ? `Replies of ${model} appear here.`
            : 'Send a message to start. The reply streams in; Stop cancels generation.'}
        </p>
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

export function Composer({ isBusy, isStarted, onSend, onStop, onClear }: ComposerProps) {
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
