import { signal } from '@preact/signals'
import { brief } from '#services/console/parts/time.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'

export interface Turn {
  readonly role: 'user' | 'assistant'
  readonly content: string
  /** Tokens and timing, once the reply is complete. */
  readonly note?: string
}

interface Chunk {
  readonly choices?: readonly { readonly delta: { readonly content?: string | null } }[]
  readonly usage?: { readonly completion_tokens: number } | null
}

export interface Saying {
  readonly system: string
  readonly options: Readonly<Record<string, unknown>>
}

/** A conversation with one model, updated as tokens arrive. */
export class Conversation {
  readonly turns = signal<readonly Turn[]>([])
  readonly model = signal('')
  readonly run = new Run()

  /** Sends a message and reads the reply until it ends or is stopped. */
  async say(text: string, saying: Saying): Promise<void> {
    const turns: readonly Turn[] = [...this.turns.value, { role: 'user', content: text }]
    const call = this.#callOf(turns, saying)
    this.turns.value = [...turns, { role: 'assistant', content: '' }]
    const end = await this.run.start([call], (signal) => this.#read(call, turns, signal))
    if (end === 'stopped' && this.turns.value.length > turns.length) this.#end(turns, 'stopped')
  }

  clear(): void {
    this.run.stop()
    this.run.problem.value = undefined
    this.turns.value = []
  }

  #callOf(turns: readonly Turn[], { system, options }: Saying): Call {
    const said = turns.filter(({ content }) => content !== '').map(({ role, content }) => ({ role, content }))
    const model = this.model.value
    const body = {
      model,
      messages: system ? [{ role: 'system', content: system }, ...said] : said,
      ...options,
      stream: true,
      stream_options: { include_usage: true },
    }
    return { name: model, path: '/v1/chat/completions', method: 'chat.completions', body }
  }

  async #read(call: Call, turns: readonly Turn[], signal: AbortSignal): Promise<void> {
    const pace = new Pace()
    let content = ''
    for await (const { choices = [], usage } of streamed<Chunk>(call, signal)) {
      const added = choices[0]?.delta.content ?? ''
      pace.saw(added, usage?.completion_tokens)
      content += added
      if (!signal.aborted) this.turns.value = [...turns, { role: 'assistant', content }]
    }
    if (!signal.aborted) this.#end(turns, pace.told())
  }

  #end(turns: readonly Turn[], note: string): void {
    const content = this.turns.value.at(-1)?.content ?? ''
    this.turns.value = [...turns, { role: 'assistant', content, note }]
  }
}

/** Measures the token rate of a streamed reply. */
export class Pace {
  readonly #startedAt = performance.now()
  #firstAt: number | undefined
  #tokens = 0

  /** @param added New text @param tokens Total tokens of the reply, if the event has them */
  saw(added: string, tokens: number | undefined): void {
    if (added) this.#firstAt ??= performance.now()
    this.#tokens = tokens ?? this.#tokens
  }

  /** Tokens, duration, time to the first token, and tokens per second after it. */
  told(): string {
    const now = performance.now()
    const took = brief((now - this.#startedAt) / 1_000)
    const first = this.#firstAt ?? now
    const rate = now > first && this.#tokens > 1 ? ((this.#tokens - 1) * 1_000) / (now - first) : undefined
    const parts = [`${this.#tokens} tokens in ${took}`, `first token after ${brief((first - this.#startedAt) / 1_000)}`]
    return [...parts, ...(rate === undefined ? [] : [`${Math.round(rate)} tokens/s`])].join(' · ')
  }
}
