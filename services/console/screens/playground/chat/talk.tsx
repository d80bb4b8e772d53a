import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { Icon } from '#services/console/parts/icon.tsx'
import { ProblemOf } from '#services/console/screens/playground/call/problem.tsx'
import type { Conversation, Turn } from './conversation.ts'

/** The messages of a conversation, scrolled to the newest. */
export function Turns({ of, isOneOfTwo }: { readonly of: Conversation; readonly isOneOfTwo: boolean }) {
  const turns = of.turns.value
  const end = useRef<HTMLDivElement>(null)
  const length = turns.at(-1)?.content.length ?? 0
  useEffect(() => {
    const place = end.current?.parentElement
    if (place) place.scrollTop = place.scrollHeight
  }, [length, turns.length])
  const model = of.model.value
  return (
    <div
      class="turns"
      role="log"
      aria-label={isOneOfTwo ? `Conversation with ${model}` : 'Conversation'}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard.
      tabIndex={0}
    >
      {turns.length === 0 && (
        <p class="dim hint">
          {isOneOfTwo
            ? `Replies of ${model} appear here.`
            : 'Send a message to start. The reply streams in; Stop cancels generation.'}
        </p>
      )}
      {turns.map((turn, nth) => (
        <Said
          key={`${turn.role}-${nth}`}
          turn={turn}
          model={model}
          isWriting={nth === turns.length - 1 && turn.role === 'assistant' && of.run.isBusy.value}
        />
      ))}
      <ProblemOf run={of.run} />
      <div ref={end} />
    </div>
  )
}

interface SaidProps {
  readonly turn: Turn
  readonly model: string
  readonly isWriting: boolean
}

function Said({ turn, model, isWriting }: SaidProps) {
  return (
    <div class={`turn ${turn.role}`}>
      <p class="who dim">{turn.role === 'user' ? 'You' : model}</p>
      <p class="words">
        {turn.content}
        {isWriting && <span class="caret" />}
      </p>
      {turn.note && <p class="dim took">{turn.note}</p>}
    </div>
  )
}

interface SayProps {
  readonly isBusy: boolean
  readonly isBegun: boolean
  readonly onSay: (text: string) => void
  readonly onStop: () => void
  readonly onClear: () => void
}

export function Say({ isBusy, isBegun, onSay, onStop, onClear }: SayProps) {
  const text = useSignal('')
  const send = () => {
    const said = text.value.trim()
    if (!said || isBusy) return
    text.value = ''
    onSay(said)
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
    event.preventDefault()
    send()
  }
  return (
    <form
      class="say"
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
      <div class="say-end">
        {isBusy ? (
          <button key="stop" type="button" class="primary" onClick={onStop}>
            <Icon name="stop" /> Stop
          </button>
        ) : (
          <button key="send" type="submit" class="primary" disabled={!text.value.trim()}>
            <Icon name="send" /> Send
          </button>
        )}
        <button type="button" class="small" onClick={onClear} disabled={!isBegun}>
          Clear
        </button>
      </div>
    </form>
  )
}
