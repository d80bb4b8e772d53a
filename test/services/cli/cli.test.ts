/** The `sluice` command as people and scripts run it: a process of its own, against a running service. */
import type { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { dirname, join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'
import { emptyDirectory, type Ran, type RunOptions, sluice } from '../../support/processes/sluice.ts'
import { questionOf, startOutside } from '../../support/research/outside.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from '../../support/sandbox/sandbox.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const NOWHERE = 'http://127.0.0.1:1'
const kafka = inject('kafka')
const postgres = inject('postgres')

/** Runs `sluice` against a stack. */
function against({ url }: Stack) {
  return (args: string[], options: RunOptions = {}) =>
    sluice(args, { ...options, env: { SLUICE_URL: url, SLUICE_API_KEY: TEST_KEY, ...options.env } })
}

/** The id of the job whose events ended. */
function endedId(lines: Record<string, unknown>[]): string {
  return String((lines.at(-1)?.job as { id?: string } | undefined)?.id)
}

const say = (prompt: string) => ['submit', '--model', 'echo-1', '--prompt', prompt]

describe('sluice', () => {
  it.each([
    'submit',
    'research',
    'batch',
    'follow',
    'get',
    'results',
    'cancel',
    'jobs',
    'redrive',
    'steps',
    'replay',
    'projects',
    'keys',
    'usage',
    'webhook-secrets',
    'doctor',
  ])('explains %s with examples and the exit codes, without looking at the settings', async (command) => {
    const { code, out } = await sluice([command, '--help'], { env: { PORT: 'wrong' } })
    expect(code).toBe(0)
    expect(out).toContain(`Usage: sluice ${command}`)
    expect(out).toMatch(/Examples?:\n {2}sluice /)
    expect(out).toContain('Exit codes: 0 ok')
  })

  it.each([
    { args: [], says: 'Usage: sluice COMMAND' },
    { args: ['--colour'], says: "Unknown option '--colour'" },
    { args: ['--json', 'fly'], says: 'There is no command fly.' },
    { args: ['--json', 'jobs', '--limit', '0'], says: 'See: sluice jobs --help' },
    { args: ['fly'], says: 'There is no command fly.\nThere are: submit, research,' },
    { args: ['jobs', '--colour'], says: "Unknown option '--colour'" },
    { args: ['keys', 'create', '--runing', '3'], says: "Unknown option '--runing'.\nDid you mean --running?" },
    { args: ['jobs', 'job_1'], says: 'job_1 is not understood here.\nSee: sluice jobs --help' },
    { args: ['jobs', '--limit', '0'], says: '--limit 0: give a whole number from 1 to 10000.' },
    { args: ['jobs', '--since', 'soon'], says: '--since soon: give a time such as' },
    { args: ['jobs', '--url', 'ftp://there'], says: '--url ftp://there: give http://host:port.' },
    { args: ['get'], says: 'JOB is missing.' },
    { args: ['get', 'a', 'b'], says: 'One JOB at a time' },
    { args: ['follow', 'job_1', '--after', '-1'], says: "'--after'" },
    { args: ['submit', '--model', 'm'], says: '--model and --prompt belong together.' },
    { args: ['submit', '--body', '{}', '--file', 'x'], says: 'Give one of --body, --file, or --model with --prompt.' },
    { args: ['submit', '--body', '{'], says: 'The request is not JSON' },
    { args: ['submit', '--body', '[]'], says: 'The request is not a JSON object.' },
    { args: ['submit'], says: 'The request is not JSON' },
    { args: ['submit', '--file', 'missing.json'], says: '--file missing.json: ENOENT' },
    { args: [...say('x'), '--metadata', '=x'], says: '--metadata =x: give KEY=VALUE.' },
    { args: [...say('x'), '--run-at', '31.1.2030'], says: '--run-at 31.1.2030: give a time' },
    { args: [...say('x'), '--deadline', '2030-01-31'], says: '--deadline 2030-01-31: give a length of time' },
    { args: [...say('x'), '--endpoint', '/v1/embeddings'], says: '--prompt makes no request for /v1/embeddings.' },
    { args: ['redrive'], says: 'Which jobs? Give their ids, or --status failed.' },
    { args: ['redrive', '--status', 'completed'], says: '--status completed: only failed, expired, cancelled' },
    { args: ['redrive', 'job_1', '--since', '1d'], says: '--since and --endpoint narrow --status' },
    { args: ['redrive', 'job_1', '--status', 'failed'], says: 'Give job ids or --status, not both.' },
    { args: ['steps'], says: 'JOB is missing.' },
    { args: ['replay'], says: 'JOB is missing.' },
    { args: ['replay', 'job_1', 'job_2', 'job_3'], says: 'Two jobs at a time; job_3 is one too many.' },
    { args: ['keys'], says: 'keys: create, list, update, rotate, revoke or audit?' },
    { args: ['keys', 'create', '--endpoints', 'v1/jobs'], says: '--endpoints v1/jobs: give paths' },
    { args: ['keys', 'create', '--models', ','], says: '--models ,: give values with commas between them.' },
    { args: ['keys', 'revoke'], says: 'Give the id of one key.' },
  ])('refuses $args with exit code 2 and says why', async ({ args, says }) => {
    const { code, out, err } = await sluice(args, { cwd: await emptyDirectory(), env: { SLUICE_URL: NOWHERE } })
    expect(err).toContain(says)
    expect(out).toBe('')
    expect(code).toBe(2)
  })

  it('names every setting that cannot be used, and exits 2', async () => {
    const { code, err } = await sluice(['jobs'], { env: { PORT: 'x', SLUICE_URL: 'nowhere' } })
    expect(code).toBe(2)
    expect(err).toMatch(/PORT: .*\n.*SLUICE_URL: /)
  })

  it('shows what a setting was set to, unless it is a secret', async () => {
    const env = { PORT: 'abc', LOG_LEVEL: 'loud', SLUICE_API_KEY: 'short', DATABASE_URL: 'mysql://me:hidden@db/x' }
    const { err } = await sluice(['jobs'], { env })
    expect(err).toContain("PORT: expected a number, got 'abc'\n")
    expect(err).toMatch(/LOG_LEVEL: .*, got 'loud'\n/)
    expect(err).toMatch(/SLUICE_API_KEY: (?!.*short).*\n/)
    expect(err).toMatch(/DATABASE_URL: (?!.*hidden).*\n/)
  })

  it('takes the options of every command before it as well', async () => {
    await using stack = await startStack()
    const around = ['--url', stack.url, `--key=${TEST_KEY}`, 'jobs', '--limit', '1']
    expect(await sluice(around, { env: { SLUICE_URL: NOWHERE } })).toMatchObject({ code: 0, out: '', err: '' })
    expect((await sluice(['--json', 'get', '--help'])).out).toContain('Usage: sluice get')
    expect(await sluice(['--json', '--help'])).toMatchObject({ code: 0, err: '' })
  })

  it('exits 4 when nobody answers, and says what to do', async () => {
    const { code, err } = await sluice(['jobs', '--url', NOWHERE])
    expect(code).toBe(4)
    expect(err).toContain(`${NOWHERE} cannot be reached`)
    expect(err).toContain('npm start')
  })

  it('exits 4 when what answers is something else', async () => {
    await using stack = await startStack()
    const { code, err } = await against(stack)(['jobs', '--url', `${stack.url}/healthz?`])
    expect(code).toBe(4)
    expect(err).toContain('is not this service')
  })

  it('runs in a Node that is too old for it by starting its own', async () => {
    const directory = await emptyDirectory()
    const old = join(directory, 'old.mjs')
    // As much of an old Node as the launcher can see.
    await writeFile(
      old,
      `const versions = { ...process.versions, node: '20.11.0' }
       if (!process.env.IS_OWN) Object.defineProperty(process, 'versions', { value: versions })
       process.env.IS_OWN = '1'`,
    )
    const env = { NODE_OPTIONS: `--import=${old}` }
    expect(await sluice(['--version'], { env })).toMatchObject({ code: 0, out: '0.1.0\n' })
    expect(await sluice(['fly'], { env })).toMatchObject({ code: 2 })
  })
})

describe('a job from the command line', () => {
  it('is submitted, waited for, and its result printed as the endpoint would answer it', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const submitted = await run([...say('one two'), '--metadata', 'team=a=b', '--priority', 'low', '--deadline', '15m'])
    expect(submitted.code).toBe(0)
    const [job] = submitted.lines
    expect(job).toMatchObject({ object: 'job', status: 'queued', metadata: { team: 'a=b' }, priority: 'low' })
    const waited = await run(['get', String(job?.id), '--wait', '30'])
    expect(waited.code).toBe(0)
    expect(waited.lines[0]).toMatchObject({ id: job?.id, status: 'completed' })
    const result = await run(['get', String(job?.id), '--result'])
    expect(result.code).toBe(0)
    expect(JSON.parse(result.out)).toMatchObject({
      object: 'chat.completion',
      choices: [{ message: { content: 'one two' } }],
    })
  })

  it('takes its request from an option, a file and standard input alike', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const body = JSON.stringify({ model: 'echo-1', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] })
    const cwd = await emptyDirectory()
    await writeFile(join(cwd, 'request.json'), body)
    const to = ['submit', '--endpoint', '/v1/messages']
    const ran = [
      await run([...to, '--body', body]),
      await run([...to, '--file', 'request.json'], { cwd }),
      await run(to, { stdin: body }),
      await run([...to, '--file', '-'], { stdin: body }),
    ]
    expect(ran.map(({ code }) => code)).toEqual([0, 0, 0, 0])
    expect(ran.map(({ lines }) => lines[0]?.endpoint)).toEqual(Array(4).fill('/v1/messages'))
  })

  it('is the same job for the same idempotency key, and refused for another request', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const first = await run([...say('one'), '--idempotency-key', 'k1'])
    await run(['get', String(first.lines[0]?.id), '--wait', '30'])
    const again = await run([...say('one'), '--idempotency-key', 'k1'])
    expect(again.lines[0]?.id).toBe(first.lines[0]?.id)
    const other = await run([...say('two'), '--idempotency-key', 'k1'])
    expect(other.code).toBe(5)
    expect(other.err).toContain('idempotency_key_reused')
    expect(other.err).toContain('Take another --idempotency-key.')
  })

  it('is followed as lines of JSON, every event once, and the exit code says how it ended', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const { code, lines } = await run([...say('!echo delay_ms=5\none two three four'), '--follow'])
    expect(code).toBe(0)
    expect(lines.map(({ sequence_number }) => sequence_number)).toEqual(lines.map((_, i) => i + 1))
    expect(lines.at(-1)).toMatchObject({ type: 'job.completed', job: { status: 'completed' } })
    const id = endedId(lines)
    const rest = await run(['follow', id, '--after', '2'])
    expect(rest.lines).toEqual(lines.slice(2))
    const nothing = await run(['follow', id, '--after', String(lines.length)])
    expect(nothing.code).toBe(0)
    expect(nothing.lines).toMatchObject([{ object: 'job', status: 'completed' }])
  })

  it('that failed exits 1 and says why, wherever it is asked for', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const followed = await run([...say('!echo fail=upstream_refused'), '--follow'])
    expect(followed.code).toBe(1)
    const id = endedId(followed.lines)
    expect((await run(['get', id, '--wait', '1'])).code).toBe(1)
    expect((await run(['get', id])).code).toBe(0)
    const result = await run(['get', id, '--result'])
    expect([result.code, result.out]).toEqual([1, ''])
    expect(result.err).toContain(`sluice redrive ${id}`)
  })

  it('is cancelled, exits 3 for whoever follows it, and cannot be cancelled once it has completed', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const [job] = (await run([...say('!echo first_ms=60000'), '--run-at', '10m'])).lines
    const id = String(job?.id)
    const unfinished = await run(['get', id, '--result'])
    expect([unfinished.code, unfinished.out]).toEqual([5, ''])
    expect(unfinished.err).toContain(`sluice follow ${id}`)
    expect((await run(['get', id, '--wait', '1'])).code).toBe(5)
    const following = run(['follow', id])
    const cancelled = await run(['cancel', id])
    expect(cancelled).toMatchObject({ code: 0, lines: [{ id, status: 'cancelled' }] })
    expect((await following).code).toBe(3)
    expect((await run(['get', id, '--result'])).code).toBe(3)
    const late = await run(['cancel', endedId((await run([...say('x'), '--follow'])).lines)])
    expect(late.code).toBe(5)
    expect(late.err).toContain('job_already_finished')
  })

  it('goes on when Ctrl-C ends the following, which says how to take it up again', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const [job] = (await run([...say('later'), '--run-at', '10m'])).lines
    const id = String(job?.id)
    const { code, err } = await run(['follow', id], {
      onStart: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    })
    expect(code).toBe(130)
    expect(err).toContain(`sluice follow ${id} --after 1`)
    expect((await run(['get', id])).lines[0]?.status).toBe('queued')
  })

  it('that researches is shown step by step, and says where it parts from another run', async () => {
    const folder = await emptyDirectory()
    await writeFile(join(folder, 'herons.md'), '# Herons\n\nHerons build their nests in tall trees near water.\n')
    const research = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
    await using stack = await startStack({ models: [ECHO_MODEL, research], settings: { RESEARCH_CORPUS: folder } })
    const run = against(stack)
    const ask = async (...more: string[]) =>
      endedId((await run(['research', 'Where do herons build their nests?', ...more])).lines)
    const [one, same, other] = [await ask(), await ask(), await ask('--deny', 'owls.example')]
    const steps = (await run(['steps', one])).lines
    expect(steps.map(({ number }) => number)).toEqual(steps.map((_, at) => at + 1))
    expect(steps.map(({ kind }) => kind)).toEqual(expect.arrayContaining(['admit', 'clock', 'weigh', 'search', 'read']))
    const alike = await run(['replay', one, same])
    expect(alike.lines.at(-1)).toEqual({ parts_at: null, same_report: true })
    expect(alike.code).toBe(0)
    await rm(join(folder, 'herons.md'))
    const again = await run(['replay', one])
    expect([again.code, again.err]).toEqual([0, ''])
    expect(again.lines.filter(({ is }) => is === 'same')).toHaveLength(steps.length)
    expect(again.lines.at(-1)).toEqual({ parts_at: null, same_report: true })
    const parted = await run(['replay', one, other])
    expect(parted.lines.at(-1)).toMatchObject({
      parts_at: { kind: 'search', differences: ['domains.deny.0: nothing ≠ "owls.example"'] },
      same_report: true,
    })
    expect(parted.code).toBe(1)
  })

  it('that researches ends early with a report at Ctrl-C', async () => {
    await using outside = await startOutside()
    const writer = { ...ECHO_MODEL, id: 'writer-1', engine: { type: 'openai', base_url: `${outside.url}/v1` } }
    const research = { id: 'deep-research', pool: 'research', engine: { type: 'research', writer: writer.id } }
    const settings = { SEARXNG_URL: outside.url, RESEARCH_ALLOW_PRIVATE: 'true' }
    await using stack = await startStack({ models: [ECHO_MODEL, writer, research], settings })
    const run = against(stack)
    let child: ReturnType<typeof spawn> | undefined
    outside.onCall = ({ what }) => {
      if (what !== 'model note') return
      child?.kill('SIGINT')
      return new Promise<void>(() => {})
    }
    const onStart = (started: typeof child) => {
      child = started
    }
    const early = await run(['research', questionOf('Tarn7')], { onStart })
    expect(early.err).toContain('Ending early')
    expect(early.code).toBe(0)
    const ended = early.lines.at(-1) as { job: { status: string; result: { choices: { finish_reason: string }[] } } }
    expect(ended.job).toMatchObject({ status: 'completed', result: { research: { stop_reason: 'cancelled' } } })
    expect(ended.job.result.choices[0]?.finish_reason).toBe('length')
  })

  it.each([
    { first: 'while it is submitted', isEarly: true },
    { first: 'while it runs', isEarly: false },
  ])('that researches takes a Ctrl-C $first, and is cancelled by a second one', async ({ isEarly }) => {
    let cancels = 0
    let child: ReturnType<typeof spawn> | undefined
    const job = { id: 'job_00000000000000000000', status: 'cancelling', created_at: 1 }
    const slow = createServer((request, response) => {
      if (request.url?.endsWith('/cancel')) cancels++
      else if (isEarly && request.method === 'POST') child?.kill('SIGINT')
      // Signals take a while on a busy machine.
      const afterMs = isEarly && cancels === 0 ? 500 : 0
      if (!request.url?.endsWith('/events')) return setTimeout(() => response.end(JSON.stringify(job)), afterMs)
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(`id: 1\ndata: ${JSON.stringify({ type: 'job.queued', sequence_number: 1 })}\n\n`)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void slow.close().closeAllConnections())
    await once(slow, 'listening')
    const { port } = slow.address() as { port: number }
    const { code, err } = await sluice(['research', 'Why?'], {
      env: { SLUICE_URL: `http://127.0.0.1:${port}`, SLUICE_API_KEY: TEST_KEY },
      onStart: (started) => {
        child = started
        started.stdout?.once('data', () => started.kill('SIGINT'))
        if (!isEarly) started.stderr?.once('data', () => started.kill('SIGINT'))
      },
    })
    expect(err).toContain('Ending early')
    expect(err).toContain(`${job.id} is cancelled.`)
    expect([code, cancels]).toEqual([130, 2])
  })

  it.each([
    { args: ['get', 'job_00000000000000000000'], key: TEST_KEY, says: 'job_not_found' },
    { args: ['follow', 'job_00000000000000000000'], key: TEST_KEY, says: 'sluice jobs' },
    { args: ['cancel', '../models'], key: TEST_KEY, says: 'job_not_found' },
    { args: ['jobs'], key: 'sk-not-a-key-of-this', says: 'sluice keys create' },
    { args: ['jobs', '--status', 'lost'], key: TEST_KEY, says: 'Unknown status' },
    {
      args: ['submit', '--endpoint', '/v1/nothing', '--body', '{}'],
      key: TEST_KEY,
      says: 'Unknown endpoint',
    },
    { args: ['submit', '--model', 'no-such', '--prompt', 'x'], key: TEST_KEY, says: 'model_not_found' },
  ])('is refused with exit code 5 and what to do: $args', async ({ args, key, says }) => {
    await using stack = await startStack()
    const { code, out, err } = await against(stack)(args, { env: { SLUICE_API_KEY: key } })
    expect(err).toContain(says)
    expect([code, out]).toEqual([5, ''])
  })
})

describe('jobs from the command line', () => {
  async function startWithFailures(): Promise<{ stack: Stack; failed: string[] }> {
    const stack = await startStack()
    const run = against(stack)
    const failed: string[] = []
    for (const code of ['upstream_refused', 'internal_error']) {
      const { lines } = await run([...say(`!echo fail=${code}`), '--follow'])
      failed.push(endedId(lines))
    }
    await run([...say('fine'), '--follow'])
    return { stack, failed }
  }

  it('are listed newest first, by status and endpoint, as many as asked for', async () => {
    const { stack, failed } = await startWithFailures()
    await using _ = stack
    const run = against(stack)
    const all = await run(['jobs'])
    expect(all.code).toBe(0)
    expect(all.lines.map(({ status }) => status)).toEqual(['completed', 'failed', 'failed'])
    const ids = async (...args: string[]) => (await run(['jobs', ...args])).lines.map(({ id }) => id)
    expect(await ids('--status', 'failed, cancelled')).toEqual(failed.toReversed())
    expect(await ids('--status', 'failed', '--limit', '1')).toEqual(failed.slice(1))
    expect(await ids('--endpoint', '/v1/messages')).toEqual([])
    expect(await ids('--since', '1h')).toHaveLength(3)
    expect(await ids('--since', '2100-01-01')).toEqual([])
  })

  it('are shown before they run again, run again up to a cap, and not a second time', async () => {
    const { stack, failed } = await startWithFailures()
    await using _ = stack
    const run = against(stack)
    const dry = await run(['redrive', '--status', 'failed', '--since', '1h', '--dry-run'])
    expect(dry.code).toBe(0)
    expect(dry.err).toContain('Nothing was run. To run these 2 jobs again, leave out --dry-run.')
    expect(dry.lines).toEqual(failed.toReversed().map((id) => ({ id, status: 'failed', dry_run: true })))
    expect((await run(['jobs'])).lines).toHaveLength(3)
    const capped = await run(['redrive', '--status', 'failed', '--max', '1'])
    expect(capped.lines).toMatchObject([{ id: failed[1], status: 'queued' }])
    expect(capped.err).toContain('--max 1')
    const newId = String(capped.lines[0]?.new_id)
    expect((await run(['get', newId, '--wait', '30'])).lines[0]).toMatchObject({
      parent_id: failed[1],
      status: 'failed',
    })
    // What ran again failed again: it is the one that is left, beside the one the cap left out.
    const rest = await run(['redrive', '--status', 'failed', '--dry-run'])
    expect(rest.lines.map(({ id }) => id)).toEqual([newId, failed[0]])
  })

  it('run again by their ids; one that may not does not keep the others from it', async () => {
    const { stack, failed } = await startWithFailures()
    await using _ = stack
    const run = against(stack)
    const [completed] = (await run(['jobs', '--status', 'completed'])).lines
    const { code, lines, err } = await run(['redrive', String(completed?.id), ...failed])
    expect(code).toBe(5)
    expect(err).toContain('1 of 3 jobs were refused.')
    expect(lines).toMatchObject([{ error: expect.any(String) }, { id: failed[0] }, { id: failed[1] }])
    const alone = await run(['redrive', String(completed?.id)])
    expect([alone.code, alone.out]).toEqual([5, ''])
    expect((await run(['redrive', ...failed, '--max', '1'])).code).toBe(2)
  })
})

describe.each([
  { name: 'keys.json', isThere: true },
  { name: 'Postgres', isThere: postgres !== null },
])('keys from the command line, in $name', ({ name, isThere }) => {
  async function keyPlace(): Promise<Record<string, string>> {
    if (name === 'keys.json') return { DATA_DIR: await emptyDirectory() }
    const database = await openPostgresDatabase(postgres ?? '')
    onTestFinished(() => database[Symbol.asyncDispose]())
    return { DATABASE_URL: database.url }
  }

  it.skipIf(!isThere)('are created, listed without their secrets, and revoked', async () => {
    const env = await keyPlace()
    const made = await sluice(['keys', 'create', '--name', 'ci', '--endpoints', '/v1/jobs, /v1/models'], { env })
    expect(made.code).toBe(0)
    const [key] = made.lines
    expect(key).toMatchObject({ name: 'ci', endpoints: ['/v1/jobs', '/v1/models'], revoked: false })
    expect(key?.secret).toMatch(/^sk-[\w-]{40}$/)
    const listed = await sluice(['keys', 'list'], { env })
    const { secret, ...shown } = key ?? {}
    expect(listed.lines).toEqual([shown])
    expect(listed.out).not.toContain(String(secret))
    expect((await sluice(['keys', 'revoke', String(key?.id)], { env })).lines).toMatchObject([{ revoked: true }])
    expect((await sluice(['keys', 'list'], { env })).lines).toMatchObject([{ revoked: true }])
    const unknown = await sluice(['keys', 'revoke', 'key_none'], { env })
    expect([unknown.code, unknown.out]).toEqual([5, ''])
  })
})

describe('keys from the command line', () => {
  it.each([
    { args: ['--endpoints', '/v1/chat'], says: 'There are: /v1/chat/completions, /v1/completions,' },
    { args: ['--endpoints', '/v1/jobs,/v1/chats'], says: '--endpoints /v1/chats: there is no such endpoint.' },
    { args: ['--models', 'echo-1,gpt-9'], says: 'There are: echo-1' },
  ])('are refused with what there is: $args', async ({ args, says }) => {
    const directory = await emptyDirectory()
    const modelsFile = join(directory, 'models.yaml')
    await writeFile(modelsFile, JSON.stringify({ models: [ECHO_MODEL] }))
    const env = { DATA_DIR: directory, MODELS_FILE: modelsFile }
    const { code, err } = await sluice(['keys', 'create', ...args], { env })
    expect([code, err]).toEqual([2, expect.stringContaining(says)])
    expect((await sluice(['keys', 'list'], { env })).lines).toEqual([])
  })

  it('are held against the ids of models that are named by an alias', async () => {
    const directory = await emptyDirectory()
    const modelsFile = join(directory, 'models.yaml')
    await writeFile(modelsFile, JSON.stringify({ models: [{ ...ECHO_MODEL, aliases: ['parrot'] }] }))
    const env = { DATA_DIR: directory, MODELS_FILE: modelsFile }
    const { lines } = await sluice(['keys', 'create', '--models', 'parrot'], { env })
    expect(lines).toMatchObject([{ models: ['echo-1'] }])
  })

  it('are valid in a running service, and no longer once they are revoked', async () => {
    await using stack = await startStack()
    const env = { DATA_DIR: stack.dataDir }
    const made = await sluice(['keys', 'create'], { env })
    expect(made.err).toContain(join(stack.dataDir, 'keys.json'))
    const [key] = made.lines
    const status = async () =>
      (await stack.get('/v1/models', { headers: { authorization: `Bearer ${key?.secret}` } })).status
    await until(async () => (await status()) === 200)
    await sluice(['keys', 'revoke', String(key?.id)], { env })
    await until(async () => (await status()) === 401)
  })

  it('that cannot be reached exit 4', async () => {
    const { code, err } = await sluice(['keys', 'list'], {
      env: { DATABASE_URL: 'postgres://sluice:secret@127.0.0.1:1/sluice' },
    })
    expect(code).toBe(4)
    expect(err).toContain('ECONNREFUSED')
    expect(err).not.toContain('secret')
  })

  it('that are broken are left alone', async () => {
    const directory = await emptyDirectory()
    await writeFile(join(directory, 'keys.json'), '{')
    const { code, err } = await sluice(['keys', 'create'], { env: { DATA_DIR: directory } })
    expect(code).toBe(4)
    expect(err).toContain(join(directory, 'keys.json'))
    expect(await readFile(join(directory, 'keys.json'), 'utf8')).toBe('{')
  })
})

describe('sluice doctor', () => {
  const MODELS = JSON.stringify({ models: [ECHO_MODEL] })

  async function place(models = MODELS) {
    const directory = await emptyDirectory()
    await writeFile(join(directory, 'models.yaml'), models)
    return { DATA_DIR: join(directory, 'data'), MODELS_FILE: join(directory, 'models.yaml'), SANDBOX: 'off' }
  }

  const of = (ran: Ran, check: string) => ran.lines.filter((line) => line.check === check)

  it('finds nothing wrong with a service that runs', async () => {
    await using stack = await startStack()
    const env = { ...(await place()), SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY }
    const ran = await sluice(['doctor', '--json'], { env })
    expect(ran.code).toBe(0)
    // What is switched off, or not needed in one process, is neither fine nor wrong.
    const unneeded = ['postgres', 'kafka', 'sandbox']
    expect(ran.lines.map(({ check, status }) => `${check} ${status}`)).toEqual(
      ['node', 'settings', 'data', 'models', 'postgres', 'kafka', 'sandbox', 'service', 'key', 'fleet'].map(
        (check) => `${check} ${[...unneeded, 'fleet'].includes(check) ? 'skip' : 'ok'}`,
      ),
    )
    for (const check of unneeded) expect(of(ran, check)[0]?.message).toMatch(/^not needed: /)
    const people = await sluice(['doctor'], { env })
    expect(people.out.split('\n')[0]).toMatch(/^OK {4}node {2,}24\./)
  })

  it('says of everything that is wrong how to mend it, and exits 1', async () => {
    const models = { ...ECHO_MODEL, id: 'far', engine: { type: 'openai', base_url: 'http://x/v1', api_key_env: 'FAR' } }
    const llama = { ...ECHO_MODEL, id: 'own', engine: { type: 'llama', file: 'missing.gguf' } }
    const env = await place(JSON.stringify({ models: [models, llama] }))
    await writeFile(env.DATA_DIR, 'in the way')
    const ran = await sluice(['doctor', '--json'], {
      env: {
        ...env,
        DATABASE_URL: 'postgres://127.0.0.1:1/sluice',
        KAFKA_BROKERS: '127.0.0.1:1',
        SLUICE_URL: NOWHERE,
      },
    })
    expect(ran.code).toBe(1)
    const found = ran.lines.map(({ check, status }) => `${check} ${status}`)
    expect(found).toEqual([
      'node ok',
      'settings ok',
      'data fail',
      'models ok',
      'models warn',
      'weights fail',
      'postgres fail',
      'kafka fail',
      'sandbox skip',
      'service fail',
    ])
    for (const { status, fix } of ran.lines)
      expect(typeof fix).toBe(['ok', 'skip'].includes(String(status)) ? 'undefined' : 'string')
    expect(of(ran, 'data')[0]?.message).toBe(`${env.DATA_DIR} is not a directory`)
  })

  it('does not fail for a service that nobody said is there, nor for a key that nobody gave', async () => {
    const ran = await sluice(['doctor', '--json'], { env: await place() })
    // Somebody else's service may listen at the default address.
    expect(of(ran, 'service')).toMatchObject([{ status: expect.stringMatching(/ok|warn/) }])
    await using stack = await startStack()
    const keyless = await sluice(['doctor', '--json'], { env: { ...(await place()), SLUICE_URL: stack.url } })
    expect([keyless.code, of(keyless, 'key')]).toMatchObject([0, [{ status: 'warn' }]])
    const wrong = { ...(await place()), SLUICE_URL: stack.url, SLUICE_API_KEY: 'sk-not-a-key-of-this' }
    expect(of(await sluice(['doctor', '--json'], { env: wrong }), 'key')).toMatchObject([{ status: 'fail' }])
  })

  it('looks at the settings first, and at nothing that depends on broken ones', async () => {
    const ran = await sluice(['doctor', '--json'], { env: { PORT: 'x', DRAIN_MS: '-1' } })
    expect(ran.code).toBe(1)
    expect(of(ran, 'settings').map(({ message }) => String(message).split(':')[0])).toEqual(['PORT', 'DRAIN_MS'])
    expect(ran.lines).toHaveLength(3)
  })

  it('names a models file that cannot be used', async () => {
    const ran = await sluice(['doctor', '--json'], { env: await place('models: [{id: 1}]') })
    expect([ran.code, of(ran, 'models')]).toMatchObject([1, [{ status: 'fail', fix: expect.any(String) }]])
  })

  it.skipIf(SANDBOX_MISSING !== undefined)('opens the sandbox and says what it guarantees', async () => {
    const env = { ...(await place()), DATA_DIR: dirname(SANDBOX_DIR), SANDBOX: 'zygote' }
    const [found] = of(await sluice(['doctor', '--json'], { env }), 'sandbox')
    expect(found).toMatchObject({
      status: 'ok',
      message: expect.stringMatching(/^zygote: works, chosen: .*numpy/),
      details: expect.arrayContaining([expect.stringContaining('namespaces')]),
    })
  })

  it.skipIf(SANDBOX_MISSING !== undefined)(
    'passes over the sandboxes that are not needed, with the reason',
    async () => {
      const env = { ...(await place()), DATA_DIR: dirname(SANDBOX_DIR), SANDBOX: 'auto' }
      for (const { status, message } of of(await sluice(['doctor', '--json'], { env }), 'sandbox')) {
        expect(`${status} ${message}`).toMatch(/^(ok \w+: works, (not )?chosen: |skip \w+: not needed, \w+ is used: )/)
      }
    },
  )

  it('says why there is no sandbox, and fetches nothing', async () => {
    const env = { ...(await place()), SANDBOX: 'wasm' }
    const [found] = of(await sluice(['doctor', '--json'], { env }), 'sandbox')
    expect(found).toMatchObject({ status: 'fail', message: expect.stringMatching(/^wasm: not available/) })
  })

  it('leaves no trace in the data directory', async () => {
    const env = { ...(await place()), SANDBOX: 'auto' }
    await mkdir(env.DATA_DIR)
    expect(of(await sluice(['doctor', '--json'], { env }), 'data')).toMatchObject([{ status: 'ok' }])
    expect(await readdir(env.DATA_DIR)).toEqual([])
  })

  it.skipIf(!postgres)('says whether the schema is that of this version, and changes nothing', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const env = { ...(await place()), DATABASE_URL: database.url }
    const look = async () => of(await sluice(['doctor', '--json'], { env }), 'postgres')
    expect(await look()).toMatchObject([
      { status: 'ok', message: expect.stringContaining('run at the next start: 001') },
    ])
    expect(await database.query("SELECT to_regclass('migrations') AS found")).toEqual([{ found: null }])
    await database.open()
    expect(await look()).toMatchObject([{ status: 'ok', message: expect.stringContaining('schema up to date') }])
    await database.query("UPDATE migrations SET hash = 'other'")
    expect(await look()).toMatchObject([{ status: 'fail', message: expect.stringContaining('another form') }])
  })

  it.skipIf(!kafka)('says whether Kafka has share groups', async () => {
    const env = { ...(await place()), KAFKA_BROKERS: kafka ?? '', KAFKA_PREFIX: 'doctor.' }
    expect(of(await sluice(['doctor', '--json'], { env }), 'kafka')).toMatchObject([
      { status: 'ok', message: expect.stringContaining('with share groups') },
    ])
  })
})
