import { signal } from '@preact/signals'
import { latencyText } from '#services/console/api/clock.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'

export interface ChatMessage {
  readonly role: 'user' | 'assistant'
  readonly content: string
  /** Tokens and timing, once the reply is complete. */
  readonly note?: string
}

interface Chunk {
  readonly choices?: readonly { readonly delta: { readonly content?: string | null } }[]
  readonly usage?: { readonly completion_tokens: number } | null
}

export interface SendOptions {
  readonly system: string
  readonly options: Readonly<Record<string, unknown>>
}

export class Conversation {
  readonly messages = signal<readonly ChatMessage[]>([])
  readonly model = signal('')
  readonly run = new Run()

  async send(text: string, sendOptions: SendOptions): Promise<void> {
    const messages: readonly ChatMessage[] = [...this.messages.value, { role: 'user', content: text }]
    const call = this.#callOf(messages, sendOptions)
    this.messages.value = [...messages, { role: 'assistant', content: '' }]
    const end = await this.run.start([call], (signal) => this.#read(call, messages, signal))
    if (end === 'stopped' && this.messages.value.length > messages.length) this.#end(messages, 'stopped')
  }

  /**
   * Returns the first request that these options would send. The form shows its code before the user has sent a
   * message.
   */
  draft(sendOptions: SendOptions): Call {
    return this.#callOf([{ role: 'user', content: 'What is a sluice?' }], sendOptions)
  }

  clear(): void {
    this.run.stop()
    this.run.problem.value = undefined
    this.messages.value = []
  }

  #callOf(messages: readonly ChatMessage[], { system, options }: SendOptions): Call {
    const sent = messages.filter(({ content }) => content !== '').map(({ role, content }) => ({ role, content }))
    const model = this.model.value
    const body = {
      model,
      messages: system ? [{ role: 'system', content: system }, ...sent] : sent,
      ...options,
      stream: true,
      stream_options: { include_usage: true },
    }
    return { name: model, path: '/v1/chat/completions', method: 'chat.completions', body }
  }

  async #read(call: Call, messages: readonly ChatMessage[], signal: AbortSignal): Promise<void> {
    const meter = new RateMeter()
    let content = ''
    for await (const { choices = [], usage } of streamed<Chunk>(call, signal, this.run)) {
      const added = choices[0]?.delta.content ?? ''
      meter.record(added, usage?.completion_tokens)
      content += added
      if (!signal.aborted) this.messages.value = [...messages, { role: 'assistant', content }]
    }
    if (!signal.aborted) this.#end(messages, meter.summary())
  }

  #end(messages: readonly ChatMessage[], note: string): void {
    const content = this.messages.value.at(-1)?.content ?? ''
    this.messages.value = [...messages, { role: 'assistant', content, note }]
  }
}

export class RateMeter {
  readonly #startedAt = performance.now()
  #firstAt: number | undefined
  #tokens = 0

  record(added: string, tokens: number | undefined): void {
    if (added) this.#firstAt ??= performance.now()
    this.#tokens = tokens ?? this.#tokens
  }

  summary(): string {
    const now = performance.now()
    const took = latencyText((now - this.#startedAt) / 1_000)
    const first = this.#firstAt ?? now
    const rate = now > first && this.#tokens > 1 ? ((this.#tokens - 1) * 1_000) / (now - first) : undefined
    const parts = [
      `${this.#tokens} tokens in ${took}`,
      `first token after ${latencyText((first - this.#startedAt) / 1_000)}`,
    ]
    return [...parts, ...(rate === undefined ? [] : [`${Math.round(rate)} tokens/s`])].join(' · ')
  }
}
