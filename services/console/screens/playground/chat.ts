import { signal } from '@preact/signals'
import { ask, askJson, wordsOf } from '#services/console/api/client.ts'
import { eventsOf } from '#services/console/api/events.ts'
import type { Model, Page } from '#services/console/api/types.ts'

/** One turn of a conversation. */
export interface Turn {
  readonly role: 'user' | 'assistant'
  readonly content: string
  /** What it took, once it has ended. */
  readonly note?: string
}

/** What a call asks for. */
export interface ChatBody {
  readonly model: string
  readonly messages: readonly { readonly role: string; readonly content: string }[]
  readonly max_tokens: number
  readonly temperature?: number
  readonly stream: true
  readonly stream_options: { readonly include_usage: true }
}

interface Chunk {
  readonly choices: readonly { readonly delta: { readonly content?: string | null } }[]
  readonly usage?: { readonly prompt_tokens: number; readonly completion_tokens: number } | null
  readonly error?: { readonly message: string }
}

/** A conversation with one model at a time, as tokens arrive. It is kept while the tab is open. */
class Chat {
  readonly turns = signal<readonly Turn[]>([])
  readonly isBusy = signal(false)
  readonly problem = signal('')
  readonly models = signal<readonly Model[]>([])
  readonly model = signal('')
  readonly system = signal('')
  readonly maxTokens = signal(512)
  /** Empty: what the model does by itself. */
  readonly temperature = signal('')
  /** The body of the last call, for its code. */
  readonly last = signal<ChatBody | undefined>(undefined)
  #abort: AbortController | undefined

  /** Finds out which models can chat. @param wanted The one to begin with, where it is there */
  async loadModels(wanted: string): Promise<void> {
    const { data } = await askJson<Page<Model>>('/v1/models')
    this.models.value = data.filter(({ capabilities }) => capabilities.includes('chat'))
    const ids = this.models.value.map(({ id }) => id)
    if (ids.includes(wanted)) this.model.value = wanted
    else if (!ids.includes(this.model.value)) this.model.value = ids[0] ?? ''
  }

  /** Says something, and reads the answer until it has ended or is stopped. */
  async say(text: string): Promise<void> {
    const turns: readonly Turn[] = [...this.turns.value, { role: 'user', content: text }]
    this.turns.value = [...turns, { role: 'assistant', content: '' }]
    this.problem.value = ''
    this.isBusy.value = true
    this.#abort = new AbortController()
    try {
      await this.#read(this.bodyOf(turns), turns, this.#abort.signal)
    } catch (error) {
      if (!this.#abort.signal.aborted) this.problem.value = wordsOf(error)
      else this.#end(turns, { note: 'stopped' })
    }
    this.isBusy.value = false
  }

  /** Closes the connection, which stops the work wherever it is. */
  stop(): void {
    this.#abort?.abort()
  }

  /** Begins anew. */
  clear(): void {
    this.stop()
    this.turns.value = []
    this.problem.value = ''
  }

  /** The body of a call that says these turns. */
  bodyOf(turns: readonly Turn[]): ChatBody {
    const system = this.system.value.trim()
    const said = turns.map(({ role, content }) => ({ role, content }))
    return {
      model: this.model.value,
      messages: system ? [{ role: 'system', content: system }, ...said] : said,
      max_tokens: this.maxTokens.value,
      ...(this.temperature.value !== '' && { temperature: Number(this.temperature.value) }),
      stream: true,
      stream_options: { include_usage: true },
    }
  }

  async #read(body: ChatBody, turns: readonly Turn[], signal: AbortSignal): Promise<void> {
    this.last.value = body
    const startedAt = performance.now()
    const response = await ask('/v1/chat/completions', { method: 'POST', body, signal })
    let content = ''
    let firstMs: number | undefined
    let tokens = 0
    for await (const event of eventsOf(response)) {
      const { choices = [], usage, error } = event as unknown as Chunk
      if (error) throw new Error(error.message)
      const added = choices[0]?.delta.content ?? ''
      if (added) firstMs ??= performance.now() - startedAt
      content += added
      tokens = usage?.completion_tokens ?? tokens
      this.turns.value = [...turns, { role: 'assistant', content }]
    }
    const seconds = (performance.now() - startedAt) / 1_000
    this.#end(turns, {
      note: `${tokens} tokens in ${seconds.toFixed(1)} s, the first after ${Math.round(firstMs ?? 0)} ms`,
    })
  }

  #end(turns: readonly Turn[], { note }: { readonly note: string }): void {
    const content = this.turns.value.at(-1)?.content ?? ''
    this.turns.value = [...turns, { role: 'assistant', content, note }]
  }
}

/** The conversation of this tab. */
export const chat = new Chat()
