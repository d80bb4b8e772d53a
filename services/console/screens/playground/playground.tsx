import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { wordsOf } from '#services/console/api/client.ts'
import { Copy } from '#services/console/parts/copy.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { asked } from '#services/console/place.ts'
import { chat, type Turn } from './chat.ts'
import { codeOf, LANGUAGES, type Language } from './code.ts'
import { Options } from './options.tsx'

/** A conversation with a model, and the code of what was just done. */
export function Playground() {
  useEffect(() => {
    chat.loadModels(asked('model')).catch((error: unknown) => {
      chat.problem.value = wordsOf(error)
    })
  }, [])
  return (
    <section class="playground">
      <div class="title">
        <h1>Playground</h1>
        <button type="button" onClick={() => chat.clear()} disabled={chat.turns.value.length === 0}>
          New conversation
        </button>
      </div>
      <div class="columns">
        <div class="card talk">
          <Conversation />
          <Say />
        </div>
        <Options />
      </div>
      <Code />
    </section>
  )
}

function Conversation() {
  const turns = chat.turns.value
  const end = useRef<HTMLDivElement>(null)
  const length = turns.at(-1)?.content.length ?? 0
  useEffect(() => {
    const place = end.current?.parentElement
    if (place) place.scrollTop = place.scrollHeight
  }, [length, turns.length])
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls can be scrolled with keys.
    <div class="turns" role="log" aria-label="Conversation" tabIndex={0}>
      {turns.length === 0 && (
        <p class="dim hint">Ask something. The answer appears word by word; Stop ends the work where it runs.</p>
      )}
      {turns.map((turn, nth) => (
        <Said key={`${turn.role}-${nth}`} turn={turn} isLast={nth === turns.length - 1} />
      ))}
      {chat.problem.value && (
        <p class="refusal" role="alert">
          {chat.problem.value}
        </p>
      )}
      <div ref={end} />
    </div>
  )
}

function Said({ turn, isLast }: { readonly turn: Turn; readonly isLast: boolean }) {
  const isWriting = isLast && turn.role === 'assistant' && chat.isBusy.value
  return (
    <div class={`turn ${turn.role}`}>
      <p class="who dim">{turn.role === 'user' ? 'You' : chat.model.value}</p>
      <p class="words">
        {turn.content}
        {isWriting && <span class="caret" />}
      </p>
      {turn.note && <p class="dim took">{turn.note}</p>}
    </div>
  )
}

function Say() {
  const text = useSignal('')
  const send = () => {
    const said = text.value.trim()
    if (!said || chat.isBusy.value || !chat.model.value) return
    text.value = ''
    void chat.say(said)
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
        placeholder="Write a message. Enter sends it, Shift+Enter begins a line."
        rows={3}
        value={text.value}
        onInput={({ currentTarget }) => {
          text.value = currentTarget.value
        }}
        onKeyDown={onKeyDown}
      />
      {chat.isBusy.value ? (
        <button type="button" class="primary" onClick={() => chat.stop()}>
          <Icon name="stop" /> Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!text.value.trim() || !chat.model.value}>
          <Icon name="send" /> Send
        </button>
      )}
    </form>
  )
}

function Code() {
  const language = useSignal<Language>('curl')
  const body = chat.last.value
  if (!body) return null
  const code = codeOf(language.value, body, location.origin)
  return (
    <div class="card code">
      <div class="title">
        <h2>The same from your program</h2>
        <fieldset class="chips" aria-label="Language">
          {LANGUAGES.map((one) => (
            <button
              type="button"
              key={one}
              class="chip"
              aria-pressed={language.value === one}
              onClick={() => {
                language.value = one
              }}
            >
              {one}
            </button>
          ))}
        </fieldset>
        <Copy text={code} label="Copy" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls can be scrolled with keys. */}
      <pre class="output" tabIndex={0}>
        {code}
      </pre>
    </div>
  )
}
