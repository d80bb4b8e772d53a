/*
 * `sluice chat`: one streamed call of `/v1/chat/completions`, or a conversation on a terminal.
 *
 * 1. The prompt comes from the arguments, from stdin if stdin is no terminal, or from both: the arguments first. With a
 *    prompt in the arguments, stdin is read if it is a file, or a pipe that has data within {@link STDIN_WAIT_MS}. A program
 *    that starts the command may leave an empty pipe open forever. The argument `-` waits for the end of stdin in any case.
 * 2. Without a prompt, each line on the terminal is one user message. The conversation is sent again with each line.
 * 3. Comments of the stream, such as the queue position, are shown in a line on stderr until the first output.
 * 4. Ctrl-C closes the connection, which cancels the call. In a conversation, a second Ctrl-C at the prompt ends the
 *    command.
 */

import { once } from 'node:events'
import { fstatSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { readMessages } from '#services/cli/client/event-stream.ts'
import { type HttpClient, readApiError } from '#services/cli/client/http.ts'
import type { Command, Invocation, Values } from '#services/cli/commands/command.ts'
import {
  CommandError,
  EXIT,
  type ExitCode,
  type Output,
  plain,
  printable,
  usageError,
} from '#services/cli/text/output.ts'
import { listModels } from './account.ts'

const PATH = '/v1/chat/completions'
const STDIN_BYTES_MAX = 16 * 1024 * 1024
const STDIN_WAIT_MS = 2_000
const KEEP_ALIVE = 'keep-alive'
/** Maximum messages of a conversation that are sent with each line. Older messages are dropped, each user message with its answer. */
const MESSAGES_MAX = 200

interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

export const chat: Command = {
  summary: 'Send a prompt to a model, or chat on the terminal',
  help: `Usage: sluice chat [PROMPT] [options]

Sends one prompt and prints the answer while it is generated. The prompt is the argument, the text on stdin, or both. Without either, each
line on the terminal continues a conversation. Ctrl-C cancels the answer; the exit code is then 130. If the program that writes to stdin
is slow to start, then add the argument - so that the command waits for the text.

Options:
  --model MODEL      the model (default: the first chat model of sluice models)
  --system TEXT      system message
  --max-tokens N     maximum tokens of an answer
  --temperature T    sampling temperature, from 0 to 2

Examples:
  sluice chat 'What is the capital of France?'
  sluice chat 'Summarize this text:' --max-tokens 200 < README.md
  sluice chat --model smollm2-135m-instruct --system 'Answer in one word.'`,
  options: {
    model: { type: 'string' },
    system: { type: 'string' },
    'max-tokens': { type: 'string' },
    temperature: { type: 'string' },
  },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const settings = settingsOf(values)
    const prompt = await promptOf(args, out)
    const model = values.text('model') ?? (await firstChatModel(api.http))
    const system = values.text('system')
    const before: Message[] = system === undefined ? [] : [{ role: 'system', content: system }]
    const conversation = { http: api.http, out, body: { model, ...settings } }
    if (prompt === undefined) return await converse(conversation, before)
    const messages: Message[] = [...before, { role: 'user', content: prompt }]
    const answer = out.isHumanReadable
      ? await answerOnce(conversation, messages)
      : await wholeAnswer(conversation, messages, out)
    return answer === undefined ? EXIT.interrupted : EXIT.ok
  },
}

interface Conversation {
  readonly http: HttpClient
  readonly out: Output
  readonly body: object
}

function settingsOf(values: Values): object {
  const max_tokens = values.count('max-tokens', 1, 10_000_000)
  const text = values.text('temperature')
  const temperature = text === undefined ? undefined : Number(text)
  if (temperature !== undefined && !(text?.trim() !== '' && temperature >= 0 && temperature <= 2)) {
    throw usageError(`--temperature must be a number from 0 to 2; got '${text}'.`)
  }
  return { ...(max_tokens !== undefined && { max_tokens }), ...(temperature !== undefined && { temperature }) }
}

async function promptOf(args: Invocation['args'], out: Output): Promise<string | undefined> {
  const given = args.filter((arg) => arg !== '-').join(' ')
  if (!args.includes('-')) {
    if (process.stdin.isTTY) return given === '' ? undefined : given
    if (given !== '' && !(await hasInput(out))) return given
  }
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of process.stdin as AsyncIterable<Buffer>) {
    bytes += piece.length
    if (bytes > STDIN_BYTES_MAX) throw usageError(`The text on stdin exceeds ${STDIN_BYTES_MAX} bytes.`)
    pieces.push(piece)
  }
  const piped = Buffer.concat(pieces).toString('utf8').trim()
  const prompt = [given, piped].filter((text) => text !== '').join('\n\n')
  if (prompt === '') throw usageError('Missing PROMPT: neither an argument nor text on stdin.')
  return prompt
}

/**
 * Whether stdin is a file, or a pipe or socket that has data soon. A pipe without data is closed, because an open pipe
 * would prevent the end of the process.
 */
async function hasInput(out: Output): Promise<boolean> {
  const stdin = fstatSync(0)
  if (stdin.isFile()) return true
  if (!stdin.isFIFO() && !stdin.isSocket()) return false
  const signal = AbortSignal.timeout(STDIN_WAIT_MS)
  try {
    await once(process.stdin, 'readable', { signal })
    return true
  } catch (error) {
    if (!signal.aborted) throw error
    process.stdin.destroy()
    out.note(
      'The pipe on stdin has no text yet, so only the argument is sent. To wait for the text: add the argument -',
    )
    return false
  }
}

async function firstChatModel(http: HttpClient): Promise<string> {
  const found = (await listModels(http)).find(({ capabilities }) => capabilities.includes('chat'))
  if (found) return found.id
  throw new CommandError(EXIT.refused, 'No model of this key generates text.', 'To list the models: sluice models')
}

async function converse(conversation: Conversation, before: readonly Message[]): Promise<ExitCode> {
  const terminal = createInterface({ input: process.stdin, output: process.stderr, prompt: '> ' })
  const messages: Message[] = []
  let isAnswering = false
  terminal.on('SIGINT', () => {
    // During an answer, Ctrl-C cancels only the answer. At the prompt, Ctrl-C ends the conversation.
    if (isAnswering) process.emit('SIGINT')
    else terminal.close()
  })
  terminal.prompt()
  for await (const line of terminal) {
    if (line.trim() !== '') {
      isAnswering = true
      messages.push({ role: 'user', content: line })
      const answer = await answerOnce(conversation, [...before, ...messages])
      isAnswering = false
      if (answer === undefined) {
        messages.pop()
        conversation.out.note(
          'The conversation continues without this message. To end the conversation: press Ctrl-C again.',
        )
      } else messages.push({ role: 'assistant', content: answer })
      messages.splice(0, Math.max(0, messages.length - MESSAGES_MAX))
    }
    terminal.prompt()
  }
  return EXIT.ok
}

/**
 * Prints an answer while it is generated.
 *
 * @returns The answer; undefined if Ctrl-C cancelled it
 */
async function answerOnce(conversation: Conversation, messages: readonly Message[]): Promise<string | undefined> {
  const { out } = conversation
  const stop = new AbortController()
  const onInterrupt = () => stop.abort()
  process.once('SIGINT', onInterrupt)
  let answer = ''
  let isWaiting = false
  try {
    for await (const { text, comment } of streamOf(conversation, messages, stop.signal)) {
      if (comment !== undefined && answer === '' && out.canRedraw) {
        out.redraw(comment)
        isWaiting = true
      }
      if (text === undefined) continue
      if (isWaiting) out.redraw('')
      isWaiting = false
      answer += text
      await out.write(printable(text))
    }
    await out.write('\n')
    return answer
  } catch (error) {
    if (!stop.signal.aborted) throw error
    await out.write('\n')
    out.note('The answer was cancelled.')
    return undefined
  } finally {
    process.off('SIGINT', onInterrupt)
  }
}

async function wholeAnswer(
  { http, body }: Conversation,
  messages: readonly Message[],
  out: Output,
): Promise<string | undefined> {
  const stop = new AbortController()
  const onInterrupt = () => stop.abort()
  process.once('SIGINT', onInterrupt)
  try {
    const headersMs = 600_000
    const response = await http.send(PATH, {
      method: 'POST',
      body: { ...body, messages },
      waitMs: headersMs,
      signal: stop.signal,
    })
    if (response.statusCode >= 300) throw await readApiError(response)
    const answer = await response.body.json()
    throwFailure(answer as CallFailure)
    await out.json(answer)
    return ''
  } catch (error) {
    if (!stop.signal.aborted) throw error
    out.note('The answer was cancelled.')
    return undefined
  } finally {
    process.off('SIGINT', onInterrupt)
  }
}

interface Piece {
  readonly text?: string
  /** Reason of the wait, such as `#3 in queue, about 12 s`. */
  readonly comment?: string
}

async function* streamOf(
  { http, body }: Conversation,
  messages: readonly Message[],
  signal: AbortSignal,
): AsyncGenerator<Piece> {
  const response = await http.send(PATH, {
    method: 'POST',
    headers: { accept: 'text/event-stream' },
    body: { ...body, stream: true, messages },
    signal,
  })
  if (response.statusCode >= 300) throw await readApiError(response)
  let isOver = false
  for await (const { data, comment } of readMessages(response)) {
    if (comment !== undefined && comment.trim() !== KEEP_ALIVE) yield { comment: plain(comment) }
    if (data === undefined) continue
    isOver = data === '[DONE]'
    yield* pieceOf(data)
  }
  if (!isOver)
    throw new CommandError(
      EXIT.unreachable,
      'The connection broke before the end of the answer.',
      'Send the prompt again.',
    )
}

function* pieceOf(data: string): Generator<Piece> {
  if (data === '[DONE]') return
  const event = JSON.parse(data) as CallFailure & {
    readonly choices?: readonly { readonly delta?: { readonly content?: string | null } }[]
  }
  throwFailure(event)
  const text = event.choices?.[0]?.delta?.content
  if (text) yield { text }
}

interface CallFailure {
  readonly error?: { readonly message?: string } | null
}

/**
 * Throws the error in the stream of a call that failed after its response had begun. The status of such a response is
 * already 200.
 */
function throwFailure({ error }: CallFailure): void {
  if (error) throw new CommandError(EXIT.unreachable, plain(error.message ?? 'The call failed.'))
}
