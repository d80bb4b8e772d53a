import type { Worker } from 'node:worker_threads'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding, yieldToEventLoop } from '#shared/lib/yielding.ts'
import { replyOf, SerialThread, startThread } from '#shared/process/serial-thread.ts'
import {
  type Conversation,
  type Piece,
  type TemplateForms,
  type TemplateSource,
  type ThreadReply,
  type ThreadTask,
  unpackPieces,
} from './conversation.ts'

/** Timeout for starting the thread, compiling the template and rendering the conversations of probe.ts. */
const OPEN_MS = 10_000
const RENDER_MS = 15_000
const HEAP_MB = 384
/** Number of messages that are sent to the thread between two event-loop yields. Sending them takes about a millisecond. */
const MESSAGES_AT_ONCE = 500

export interface TemplateLimits {
  readonly openMs?: number
  readonly renderMs?: number
}

/**
 * The chat template of a model file. A template is a program of an unknown author, so it runs in a thread. Endless loops and unbounded prompts end
 * the thread, but never end the process or block the event loop.
 */
export class ModelTemplate {
  readonly forms: TemplateForms
  readonly #limits: TemplateLimits
  readonly #thread: SerialThread

  private constructor(source: TemplateSource, limits: TemplateLimits, worker: Worker, forms: TemplateForms) {
    this.#limits = limits
    this.#thread = new SerialThread(async () => (await start(source, limits)).worker, worker)
    this.forms = forms
  }

  static async open(source: TemplateSource, limits: TemplateLimits = {}): Promise<ModelTemplate> {
    const { worker, forms } = await start(source, limits)
    return new ModelTemplate(source, limits, worker, forms)
  }

  /**
   * Renders a conversation into the pieces of a prompt.
   *
   * @throws ServiceError `invalid_value` if the template rejects the conversation or takes too long. The signal's reason, if the signal aborts
   */
  async render(conversation: Conversation, signal: AbortSignal): Promise<readonly Piece[]> {
    const reply = await this.#thread.run((worker) => this.#ask(worker, conversation), signal)
    if ('layout' in reply) return await runYielding(unpackPieces(reply), signal)
    if ('refusal' in reply) throw refused(`rejects these messages: ${reply.refusal}`)
    throw refused(`failed with these messages: ${'problem' in reply ? reply.problem : 'no reply'}`)
  }

  async close(): Promise<void> {
    await this.#thread.close()
  }

  async #ask(worker: Worker, { messages, ...rest }: Conversation): Promise<ThreadReply> {
    for (let at = 0; at < messages.length; at += MESSAGES_AT_ONCE) {
      if (at > 0) await yieldToEventLoop()
      worker.postMessage({ add: messages.slice(at, at + MESSAGES_AT_ONCE) } satisfies ThreadTask)
    }
    const task = { render: rest } satisfies ThreadTask
    return await replyOf<ThreadReply>(worker, this.#limits.renderMs ?? RENDER_MS, task).catch((cause) => {
      throw refused('took too long, or too much memory, for these messages', cause)
    })
  }
}

async function start(
  source: TemplateSource,
  limits: TemplateLimits,
): Promise<{ worker: Worker; forms: TemplateForms }> {
  const worker = startThread(new URL('./thread.ts', import.meta.url), HEAP_MB, { workerData: source })
  const reply: ThreadReply = await replyOf<ThreadReply>(worker, limits.openMs ?? OPEN_MS).catch(() => ({
    problem: 'Rendering a short conversation takes too much time or memory.',
  }))
  if ('forms' in reply) return { worker, forms: reply.forms }
  await worker.terminate()
  const reason = 'problem' in reply ? reply.problem : ''
  const message = `The chat template of the model cannot be used: ${reason} Set engine.chat_template to another template.`
  throw new ServiceError('model_loading', message)
}

function refused(what: string, cause?: unknown): ServiceError {
  return new ServiceError('invalid_value', `The chat template of the model ${what}`, { param: 'messages', cause })
}
