/* Tests of `sluice follow` against a scripted server: how the command resumes a stream, and how it displays events. */

import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { followEvents } from '#services/cli/client/event-stream.ts'
import { HttpClient } from '#services/cli/client/http.ts'
import { JobEventView, JobView } from '#services/cli/client/job.ts'
import { describeJob } from '#services/cli/client/job-text.ts'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandLine, Values } from '#services/cli/commands/command.ts'
import { barLine, openFollowView } from '#services/cli/commands/following.ts'
import { get, jobTable } from '#services/cli/commands/jobs.ts'
import { Output, tableOf } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'

const ID = 'job_01'
const job = (status: string, more: object = {}) => JobView.parse({ id: ID, status, created_at: 1_790_000_000, ...more })
const chunk = (content: string) => ({ choices: [{ index: 0, delta: { content } }] })

/** Returns the events of a completed job: `count - 1` output deltas, then `job.completed`. */
function historyOf(count: number): object[] {
  return Array.from({ length: count }, (_, i) => {
    const head = { sequence_number: i + 1, job_id: ID, created_at: 1_790_000_000 }
    return i + 1 < count
      ? { type: 'job.output.delta', ...head, chunk: chunk(`${i + 1} `) }
      : { type: 'job.completed', ...head, job: job('completed') }
  })
}

/**
 * The behaviour of a test server for one connection of the client.
 *
 * @param after Last-Event-ID that the client sent, or 0
 */
type Script = (after: number, res: ServerResponse, connection: number) => void

const frame = (event: { sequence_number?: number }) =>
  `${event.sequence_number === undefined ? '' : `id: ${event.sequence_number}\n`}data: ${JSON.stringify(event)}\n\n`

/** Sends `count` events and half of the next event, then cuts the connection. If no next event exists, the response ends normally. */
function sendCut(res: ServerResponse, events: object[], count: number): void {
  const next = events[count]
  res.writeHead(200, { 'content-type': 'text/event-stream' })
  res.write(`retry: 1\n\n: hello\n\n${events.slice(0, count).map(frame).join('')}`)
  if (next === undefined) return void res.end()
  const half = frame(next)
  res.write(half.slice(0, half.length / 2), () => res.destroy())
}

/**
 * Starts a server that handles requests for the events of a job by `script`, and returns `bodies[path]` for other paths. `positions`
 * records the Last-Event-ID of each connection.
 */
async function serve(script: Script, bodies: Readonly<Record<string, string>> = {}) {
  const positions: number[] = []
  const server = createServer((req: IncomingMessage, res) => {
    const body = bodies[req.url ?? '']
    if (body !== undefined) return void res.end(body)
    const after = Number(req.headers['last-event-id'] ?? 0)
    positions.push(after)
    script(after, res, positions.length)
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const http = new HttpClient(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, undefined)
  onTestFinished(async () => {
    await http.close()
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  return { http, positions }
}

/** Starts a server as `serve` does, but refuses connections until the test calls `restart`. */
async function serveLater(script: Script) {
  const positions: number[] = []
  const server = createServer((req, res) => script(0, res, positions.push(Number(req.headers['last-event-id'] ?? 0))))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  const http = new HttpClient(`http://127.0.0.1:${port}`, undefined)
  onTestFinished(async () => {
    await http.close()
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  return { http, positions, restart: () => void server.listen(port, '127.0.0.1') }
}

async function collect(http: HttpClient, after = 0, onReconnect?: (why: string, delayMs: number) => void) {
  const events: JobEventView[] = []
  const options = { after, signal: AbortSignal.timeout(25_000), ...(onReconnect && { onReconnect }) }
  for await (const event of followEvents(http, ID, options)) events.push(event)
  return events
}

const numbers = (events: JobEventView[]) => events.map(({ sequence_number }) => sequence_number)
const upTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1)

describe("the follower of a job's event stream", () => {
  it('yields each of 200 events once and in order, even if the connection breaks after any event', async () => {
    const history = historyOf(200)
    const followers = upTo(199).map(async (cut) => {
      const { http, positions } = await serve((after, res, connection) =>
        sendCut(res, history.slice(after), connection === 1 ? cut : history.length),
      )
      expect(numbers(await collect(http))).toEqual(upTo(200))
      expect(positions).toEqual([0, cut])
    })
    await Promise.all(followers)
  })

  it('reconnects without limit if each connection delivers a new event', async () => {
    const history = historyOf(30)
    const { http, positions } = await serve((after, res) => sendCut(res, history.slice(after), 1))
    const cuts: number[] = []
    expect(numbers(await collect(http, 0, (_, delayMs) => cuts.push(delayMs)))).toEqual(upTo(30))
    expect(positions).toEqual(upTo(30).map((count) => count - 1))
    expect(cuts).toHaveLength(29)
  })

  it('drops repeated events, and reconnects after a gap in the event numbers', async () => {
    const history = historyOf(6)
    const { http, positions } = await serve((_, res, connection) => {
      const sent = connection === 1 ? [...history.slice(0, 2), ...history.slice(3)] : history
      sendCut(res, sent, sent.length)
    })
    expect(numbers(await collect(http))).toEqual(upTo(6))
    expect(positions).toEqual([0, 2])
  })

  it('starts after the event position that the caller gives', async () => {
    const history = historyOf(5)
    const { http, positions } = await serve((after, res) => sendCut(res, history.slice(after), 5))
    expect(numbers(await collect(http, 3))).toEqual([4, 5])
    expect(positions).toEqual([3])
  })

  it('accepts a snapshot event in place of expired events', async () => {
    const [, , , ...rest] = historyOf(5)
    const snapshot = { type: 'job.snapshot', job: job('in_progress') }
    const { http } = await serve((_, res) => sendCut(res, [snapshot, ...rest], 3))
    const events = await collect(http)
    expect(events.map(({ type }) => type)).toEqual(['job.snapshot', 'job.output.delta', 'job.completed'])
  })

  it('ends without an event if the service returns 204', async () => {
    const { http } = await serve((_, res) => res.writeHead(204).end())
    expect(await collect(http, 7)).toEqual([])
  })

  it('reconnects after the Retry-After time of a 429 or 503 response', async () => {
    const history = historyOf(3)
    const { http } = await serve((after, res, connection) => {
      if (connection === 1) res.writeHead(503, { 'retry-after': '0' }).end('{}')
      else if (connection === 2) res.writeHead(429, { 'retry-after': '1' }).end('{}')
      else sendCut(res, history.slice(after), 3)
    })
    const delays: number[] = []
    expect(numbers(await collect(http, 0, (_, delayMs) => delays.push(delayMs)))).toEqual(upTo(3))
    expect(delays).toEqual([0, 1_000])
  })

  it('gives up after twelve connections without a new event and prints how to resume', async () => {
    const history = historyOf(3)
    const { http, positions } = await serve((after, res, connection) => {
      if (connection === 1) sendCut(res, history.slice(after), 2)
      else res.writeHead(503, { 'retry-after': '0' }).end('{"error":{"message":"The store is away."}}')
    })
    await expect(collect(http)).rejects.toMatchObject({
      exit: 4,
      message: expect.stringContaining('The store is away.'),
      next: expect.stringContaining(`sluice follow ${ID} --after 2`),
    })
    expect(positions).toHaveLength(13)
  })

  it.each([401, 403, 404, 400])('does not retry after a response with the status %d', async (status) => {
    const { http, positions } = await serve((_, res) => res.writeHead(status).end('{"error":{"message":"No."}}'))
    await expect(collect(http)).rejects.toMatchObject({ exit: 5, message: 'No.' })
    expect(positions).toHaveLength(1)
  })

  it.each(['data: {"type":\n\n', 'data: {"type":"job.queued","sequence_number":"1"}\n\n'])(
    'does not retry after an invalid event: %j',
    async (text) => {
      const { http, positions } = await serve((_, res) => res.writeHead(200).end(text))
      await expect(collect(http)).rejects.toMatchObject({ exit: 4 })
      expect(positions).toHaveLength(1)
    },
  )

  it('retries for some seconds if the service is unreachable, and then prints a remedy', async () => {
    const http = new HttpClient('http://127.0.0.1:1', undefined)
    onTestFinished(() => http.close())
    const cuts: string[] = []
    await expect(collect(http, 0, (why) => cuts.push(why))).rejects.toMatchObject({
      exit: 4,
      message: expect.stringContaining('Cannot reach'),
      next: expect.stringContaining('npm start'),
    })
    expect(cuts).toHaveLength(5)
  })

  it('receives the events of a service that starts during the retries', async () => {
    const { http, positions, restart } = await serveLater((after, res) => sendCut(res, historyOf(3).slice(after), 3))
    const cuts: string[] = []
    const events = await collect(http, 0, (why) => {
      if (cuts.push(why) === 2) restart()
    })
    expect(numbers(events)).toEqual([1, 2, 3])
    expect(positions).toEqual([0])
    expect(cuts[0]).toContain('Cannot reach')
  })
})

/** Returns an `Output` and the list `written` of its writes. Each entry starts with the name of its stream, `out: ` or `err: `. */
function openOutput(isTTY: boolean) {
  const written: string[] = []
  const stream = (mark: string) =>
    Object.assign(Object.create(process.stdout), {
      isTTY,
      columns: 60,
      write: (text: string) => {
        written.push(`${mark}${text}`)
        return true
      },
    })
  return { written, out: new Output({ out: stream('out: '), err: stream('err: ') }) }
}

function terminal(isTTY = true) {
  const { written, out } = openOutput(isTTY)
  const view = openFollowView(out)
  onTestFinished(() => view.close())
  const event = (more: object) => view.event(JobEventView.parse({ sequence_number: 1, ...more }))
  return { written, view, event }
}

const delta = (content: string) => ({ type: 'job.output.delta', chunk: chunk(content) })
const ERASE = 'err: \r\x1b[K'

describe('the terminal view of a followed job', () => {
  it('shows a progress bar with phase, percent and message, and erases the bar before output', async () => {
    const { written, view, event } = terminal()
    await event({ type: 'job.progress', progress: { phase: 'searching', percent: 50, message: 'Reading 3/8' } })
    await event(delta('Hello'))
    await event({ type: 'job.progress', progress: { percent: 90 } })
    await event(delta(' you\n'))
    await view.end(job('completed'))
    expect(written).toEqual([
      `${ERASE}searching ████████████░░░░░░░░░░░░ 50 % (0 s) Reading 3/8`,
      ERASE,
      'out: Hello',
      'out:  you\n',
      expect.stringContaining(`${ID} completed`),
    ])
  })

  it('limits the progress bar to one line and strips control characters of untrusted text', async () => {
    const { written, event } = terminal()
    const message = `a\nb\x1b[2J\x07\x9b1A ${'long '.repeat(40)}`
    await event({ type: 'job.progress', progress: { phase: 'x', percent: 250, message } })
    await event(delta('one\x1b]0;title\x07\ttwo\r\n\x1b[31mthree'))
    expect(written[0]?.slice(ERASE.length)).toHaveLength(59)
    expect(written[0]?.slice(ERASE.length)).toMatch(/^x █{8} 100 % \(0 s\) a b long/)
    expect(written.at(-1)).toBe('out: one\ttwo\nthree')
  })

  it('reports that earlier output is discarded if an attempt is retried', async () => {
    const { written, view, event } = terminal()
    await event(delta('half'))
    await event({ type: 'job.retrying', attempt: 1, reason: 'worker_lost', delay_ms: 1_500, output_reset: true })
    await event(delta('whole'))
    await view.end(job('completed'))
    expect(written.join('\n')).toContain(
      'err: \nAttempt 1 failed (worker_lost); retrying in 2 s; the output above is discarded.\n',
    )
    expect(written.join('\n')).toContain('out: whole\nout: \n')
  })

  it.each([
    { endpoint: 'chat completions', result: { choices: [{ index: 0, message: { content: 'An answer.' } }] } },
    {
      endpoint: 'messages',
      result: {
        content: [
          { type: 'text', text: 'An ' },
          { type: 'text', text: 'answer.' },
        ],
      },
    },
    { endpoint: 'transcriptions', result: { text: 'An answer.' } },
    { endpoint: 'code', result: { success: true, stdout: 'An ', stderr: 'answer.', plots: [] } },
  ])('prints the text of a result of $endpoint if nothing was streamed', async ({ result }) => {
    const { written, view, event } = terminal()
    await event({ type: 'job.started', attempt: 1 })
    await view.end(job('completed', { result }))
    expect(written).toContain('out: An answer.')
  })

  it.each([
    {
      more: { usage: { input_tokens: 12, output_tokens: 40 } },
      summary: `${ID} completed, 12 input tokens, 40 output tokens`,
    },
    {
      more: { usage: { prompt_tokens: 1, completion_tokens: 2 } },
      summary: `${ID} completed, 1 input tokens, 2 output tokens`,
    },
    {
      more: { started_at: 1_790_000_002, completed_at: 1_790_000_005 },
      summary: 'completed, ran for 3 s after 2 s in the queue',
    },
    { more: { started_at: 1_790_000_000, completed_at: 1_790_000_000 }, summary: 'completed, ran for < 1 s' },
  ])('ends with a summary of tokens and duration: $summary', async ({ more, summary }) => {
    const { written, view } = terminal()
    await view.end(job('completed', { result: {}, ...more }))
    expect(written.at(-1)).toContain(summary)
  })

  it('prints a result without text as JSON', async () => {
    const { written, view } = terminal()
    await view.end(job('completed', { result: { data: [1] } }))
    expect(written[0]).toBe('out: {\n  "data": [\n    1\n  ]\n}\n')
  })

  it.each([
    { chunk: { type: 'content_block_delta', delta: { type: 'text_delta', text: 'x' } } },
    { chunk: { type: 'transcript.text.delta', delta: 'x' } },
    { chunk: { type: 'code.output.delta', stream: 'stdout', text: 'x' } },
    {
      chunk: {
        choices: [
          { index: 1, delta: { content: 'no' } },
          { index: 0, delta: { content: 'x' } },
        ],
      },
    },
  ])('prints the text of an output chunk of the form $chunk', async ({ chunk }) => {
    const { written, event } = terminal()
    await event({ type: 'job.output.delta', chunk })
    expect(written).toEqual(['out: x'])
  })

  it('prints why a job failed and how to redrive it', async () => {
    const { written, view } = terminal()
    await view.end(job('failed', { error: { message: 'Too long.', code: 'timeout' } }))
    expect(written.join('')).toContain(`${ID} failed: Too long. (timeout)`)
    expect(written.join('')).toContain(`sluice redrive ${ID}`)
  })

  it('shows the time since the submission of the job, even if the follower starts later', async () => {
    const { written, event } = terminal()
    const submittedAt = Math.floor(Date.now() / 1_000) - 3_600
    await event({ type: 'job.queued', created_at: submittedAt })
    await event({ type: 'job.started', sequence_number: 2, created_at: submittedAt + 5 })
    const ended = { id: ID, status: 'completed', created_at: submittedAt, completed_at: submittedAt + 40 }
    await event({ type: 'job.completed', sequence_number: 3, job: ended })
    expect(written[1]).toMatch(/running \(36\d\d s\)$/)
    expect(written[2]).toMatch(/completed \(40 s\)$/)
  })

  it('shows the elapsed seconds without a percentage if the progress has no percentage', () => {
    expect(barLine('queued', {}, 12)).toBe('queued (12 s)')
  })

  it('shortens the progress bar first, and the message only if the line is still too long', () => {
    const message = '5 of 20 done, 2 failed, ends 14:05:40 (in 19 s), 0.794/s'
    const line = barLine('in progress', { percent: 25, message }, 7, 79)
    expect(line).toBe('in progress ██░░░░░░ 25 % (7 s) 5 of 20 done, 2 failed, ends 14:05:40 (in 19 s)')
  })
})

describe('the output of a followed job in a pipe', () => {
  it('consists of JSON lines on stdout, and nothing is printed to stderr', async () => {
    const { written, view, event } = terminal(false)
    await event({ type: 'job.progress', progress: { percent: 50 } })
    await event({ type: 'job.completed', job: job('completed') })
    await view.end(job('completed'))
    expect(written.map((line) => JSON.parse(line.replace('out: ', '')).type)).toEqual(['job.progress', 'job.completed'])
  })

  it('ends with the job object if the follower received no final event', async () => {
    const { written, view } = terminal(false)
    await view.end(job('failed'))
    expect(JSON.parse(written.join('').replace('out: ', ''))).toMatchObject({ id: ID, status: 'failed' })
  })
})

describe('the view of a single job', () => {
  const ANSWER = { choices: [{ index: 0, message: { content: `Paris.\n${'It is. '.repeat(100)}` } }] }

  /** Runs `sluice get` against a server that returns the job `shown` and its `result`. Returns the text that the command wrote. */
  async function show(isTTY: boolean, options: Record<string, unknown>, shown: object, result = '') {
    const { http } = await serve((_, res) => void res.end(), {
      [`/v1/jobs/${ID}`]: JSON.stringify(shown),
      [`/v1/jobs/${ID}/result`]: result,
    })
    const { written, out } = openOutput(isTTY)
    const line = { values: new Values(options), args: [ID], commandLine: new CommandLine([]) }
    await get.run({ ...line, config: parseConfig({}), out, api: new JobsApi(http) })
    return written.join('')
  }

  it('shows the beginning of the output on a terminal, and how to get the full result', async () => {
    const text = await show(true, {}, job('completed', { result: ANSWER }))
    expect(text).toMatch(/output {4}Paris\. It is\. It is\. .*…\n/)
    expect(text.length).toBeLessThan(600)
    expect(text).toContain(`err: For the full result: sluice get ${ID} --result\n`)
    expect(await show(true, {}, job('in_progress'))).not.toContain('--result')
  })

  it('ends the result with a line break on a terminal, and prints the exact bytes in a pipe', async () => {
    const result = '{"text":"\x9b1Ax"}'
    expect(await show(true, { result: true }, job('completed'), result)).toBe('out: {"text":"x"}out: \n')
    expect(await show(true, { result: true }, job('completed'), '1\n')).toBe('out: 1\n')
    expect(await show(false, { result: true }, job('completed'), result)).toBe(`out: ${result}`)
  })
})

describe('a table on the terminal', () => {
  const long = job('in_progress', {
    id: `job_${'x'.repeat(32)}`,
    endpoint: '/v1/chat/completions',
    model: 'a-model-with-a-long-name-7b-instruct',
    progress: { percent: 40 },
  })

  it('fits jobs into 80 columns with complete ids and statuses', () => {
    const lines = jobTable([long, job('completed', { model: 'm', progress: { percent: 100 } })], 80).split('\n')
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(80)
    expect(lines[0]).toMatch(/^job +age +model +status$/)
    expect(lines[2]).toMatch(/ completed$/)
    expect(lines[1]).toMatch(new RegExp(`^${long.id} .* a-model-\\S+… +in_progress 40 %$`))
  })

  it('shows complete model names if the terminal is wide enough', () => {
    const lines = jobTable([long], 200).split('\n')
    expect(lines[0]).toMatch(/^job +age +endpoint +model +attempt +status$/)
    expect(lines[1]).toContain(long.model)
  })

  it('exceeds the terminal width if every column already has its minimum width', () => {
    expect(tableOf({ head: ['id', 'name'], rows: [['0123456789', 'abcdefghij']], spare: [] }, 5)).toBe(
      'id          name\n0123456789  abcde…\n',
    )
  })
})

it('sluice get hides the model, worker and result of the internal job of a batch', () => {
  const child_counts = { total: 8, completed: 6, failed: 1 }
  const internal = { model: 'batch', worker: 'wrk_1', attempt: 3, result: { completed: 6 } }
  const shown = describeJob(job('in_progress', { endpoint: '/v1/batches', child_counts, ...internal }))
  expect(shown).toMatch(/^requests +7 of 8 ended, 1 failed$/m)
  expect(shown).not.toMatch(/^(model|worker|attempt|output)/m)
})

it('sluice get shows the tokens and the cost of a job, and for a waiting batch the reason instead of an estimate', () => {
  const usage = { input_tokens: 12, output_tokens: 5 }
  expect(describeJob(job('completed', { usage, cost_usd: 0.00125 }))).toMatch(
    /^usage +12 input tokens, 5 output tokens, cost \$0\.0013$/m,
  )
  const progress = { requests_per_second: null, estimated_end_at: null }
  const waiting_for = '2 requests wait for a retry'
  const view = { id: 'batch_1', status: 'in_progress', endpoint: '/v1/embeddings', created_at: 1, waiting_for }
  const batch = { ...view, request_counts: { total: 2, completed: 0, failed: 0 } }
  const shown = describeJob(job('in_progress', { endpoint: '/v1/batches', progress }), batch)
  expect(shown).toMatch(/^waits for 2 requests wait for a retry$/m)
  expect(shown).not.toContain('estimating')
})

it('sluice get shows the endpoint, model and file of a batch', () => {
  const view = { id: 'batch_1', status: 'completed', endpoint: '/v1/chat/completions', model: 'm1', created_at: 1 }
  const batch = { ...view, request_counts: { total: 1, completed: 1, failed: 0 } }
  const shown = describeJob(job('completed', { endpoint: '/v1/batches', metadata: { name: 'prompts.csv' } }), batch)
  expect(shown).toMatch(/^endpoint +\/v1\/chat\/completions\nmodel +m1\nfile +prompts\.csv$/m)
})
