/*
 * Tests of the `sluice` command against a running service. Tests of standard input, signals and the start of the command run a process. All
 * other tests call the command in the process of the test.
 */

import type { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { dirname, join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import packageJson from '../../../package.json' with { type: 'json' }
import { openPostgresDatabase } from '../../support/jobs/stores.ts'
import { emptyDirectory, type Ran, type RunOptions, sluice } from '../../support/processes/sluice.ts'
import { sluiceHere } from '../../support/processes/sluice-here.ts'
import { questionOf, startOutside } from '../../support/research/outside.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from '../../support/sandbox/sandbox.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const NOWHERE = 'http://127.0.0.1:1'
const kafka = inject('kafka')
const postgres = inject('postgres')

/**
 * Returns a function that runs `sluice` with the URL and the key of a test service. If options other than `env` are given, the function
 * runs the command in a child process.
 */
function against({ url }: Stack) {
  return (args: string[], { env, ...process }: RunOptions = {}) => {
    const settings = { SLUICE_URL: url, SLUICE_API_KEY: TEST_KEY, ...env }
    return Object.keys(process).length === 0
      ? here(args, { env: settings })
      : sluice(args, { ...process, env: settings })
  }
}

const here = (args: readonly string[], { env }: Pick<RunOptions, 'env'> = {}) => sluiceHere(args, env)

/** Returns the job id in the last printed line, which is the final event of a followed job. */
function endedId(lines: Record<string, unknown>[]): string {
  return String((lines.at(-1)?.job as { id?: string } | undefined)?.id)
}

const chatJob = (prompt: string) => ['submit', '--model', 'echo-1', '--prompt', prompt]

describe('the sluice command', () => {
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
  ])('prints help for %s with examples and exit codes, even if a setting is invalid', async (command) => {
    const { code, out } = await here([command, '--help'], { env: { PORT: 'wrong' } })
    expect(code).toBe(0)
    expect(out).toContain(`Usage: sluice ${command}`)
    expect(out).toMatch(/Examples?:\n {2}sluice /)
    expect(out).toMatch(/Exit codes:\n {2}0 +success/)
  })

  it.each([
    { args: [], message: 'Usage: sluice COMMAND' },
    { args: ['--colour'], message: "Unknown option '--colour'" },
    { args: ['--json', 'fly'], message: "Unknown command 'fly'." },
    { args: ['--json', 'jobs', '--limit', '0'], message: 'For help: sluice jobs --help' },
    { args: ['fly'], message: "Unknown command 'fly'.\nFor all commands: sluice --help" },
    { args: ['jobs', '--colour'], message: "Unknown option '--colour'" },
    { args: ['keys', 'create', '--runing', '3'], message: "Unknown option '--runing'.\nDid you mean --running?" },
    { args: ['keys', 'rotate', 'key_1', '--overlap', '1h'], message: "'--overlap' was renamed.\nUse --grace-period." },
    { args: ['research', 'Why?', '--for', '5m'], message: "Option '--for' was renamed.\nUse --ttl." },
    { args: [...chatJob('x'), '--start-within', '1m'], message: 'was renamed.\nUse --start-deadline.' },
    { args: ['jobs', '--for', '5m'], message: "Unknown option '--for'." },
    { args: ['usage', '--from', '7d'], message: "Option '--from' was renamed.\nUse --since." },
    { args: ['usage', '--to', '2030-01-31'], message: "Option '--to' was renamed.\nUse --until." },
    { args: ['jobs', 'job_1'], message: "Unexpected argument: 'job_1'.\nFor help: sluice jobs --help" },
    { args: ['jobs', '--limit', '0'], message: "--limit must be a whole number from 1 to 10000; got '0'." },
    { args: ['jobs', '--since', 'soon'], message: '--since must be a time such as' },
    {
      args: ['jobs', '--url', 'ftp://there'],
      message: "--url must be an http or https URL, such as http://127.0.0.1:8080; got 'ftp://there'.",
    },
    { args: ['get'], message: 'Missing argument: JOB.' },
    { args: ['get', 'req_1'], message: 'req_1 is the id of a request.\nTo show the request: sluice logs req_1' },
    { args: ['get', 'a', 'b'], message: "Too many arguments: expected one JOB, also got 'b'." },
    { args: ['follow', 'job_1', '--after', '-1'], message: "'--after'" },
    { args: ['submit', '--model', 'm'], message: '--model requires --prompt.' },
    {
      args: ['submit', '--body', '{}', '--file', 'x'],
      message: 'Use only one of --body, --file, or --model with --prompt.',
    },
    { args: ['submit', '--body', '{'], message: 'The request is not valid JSON' },
    { args: ['submit', '--body', '[]'], message: 'The request must be a JSON object.' },
    { args: ['submit', '--file', 'missing.json'], message: 'missing.json does not exist' },
    { args: [...chatJob('x'), '--metadata', '=x'], message: "--metadata must have the form KEY=VALUE; got '=x'." },
    { args: [...chatJob('x'), '--run-at', '31.1.2030'], message: '--run-at must be a time' },
    { args: [...chatJob('x'), '--deadline', '2030-01-31'], message: '--deadline must be a duration' },
    {
      args: [...chatJob('x'), '--endpoint', '/v1/embeddings'],
      message: '--prompt does not support the endpoint /v1/embeddings.',
    },
    { args: ['redrive'], message: 'Missing argument: JOB, or --status' },
    {
      args: ['redrive', '--status', 'completed'],
      message: "--status must be failed, expired or cancelled; got 'completed'.",
    },
    { args: ['redrive', 'job_1', '--since', '1d'], message: '--since and --endpoint require --status.' },
    { args: ['redrive', 'job_1', '--status', 'failed'], message: 'Use either job ids or --status, not both.' },
    { args: ['steps'], message: 'Missing argument: JOB.' },
    { args: ['replay'], message: 'Missing argument: JOB.' },
    {
      args: ['replay', 'job_1', 'job_2', 'job_3'],
      message: "Too many arguments: expected at most two jobs, also got 'job_3'.",
    },
    { args: ['keys'], message: 'Missing action after keys: create, list, update, rotate, revoke or audit.' },
    { args: ['keys', 'create', '--endpoints', 'v1/jobs'], message: '--endpoints must be paths' },
    {
      args: ['keys', 'create', '--models', ','],
      message: "--models must be a comma-separated list without empty items; got ','.",
    },
    { args: ['keys', 'revoke'], message: 'Expected exactly one argument: the ID of a key.' },
  ])('exits with code 2 and the reason if its arguments are $args', async ({ args, message }) => {
    const { code, out, err } = await here(args, { env: { SLUICE_URL: NOWHERE } })
    expect(err).toContain(message)
    expect(out).toBe('')
    expect(code).toBe(2)
  })

  it('exits with code 2 and the reason if its standard input is empty', async () => {
    const { code, out, err } = await sluice(['submit'], { cwd: await emptyDirectory() })
    expect([code, out, err]).toEqual([2, '', expect.stringContaining('The request is not valid JSON')])
  })

  it('lists all invalid settings and exits with code 2', async () => {
    const { code, err } = await here(['jobs'], { env: { PORT: 'x', SLUICE_URL: 'nowhere' } })
    expect(code).toBe(2)
    expect(err).toMatch(/PORT: .*\n.*SLUICE_URL: /)
  })

  it('shows the value of an invalid setting unless the setting is a secret', async () => {
    const env = { PORT: 'abc', LOG_LEVEL: 'loud', SLUICE_API_KEY: 'short', DATABASE_URL: 'mysql://me:hidden@db/x' }
    const { err } = await here(['jobs'], { env })
    expect(err).toContain("PORT: expected a number, got 'abc'\n")
    expect(err).toMatch(/LOG_LEVEL: .*, got 'loud'\n/)
    expect(err).toMatch(/SLUICE_API_KEY: (?!.*short).*\n/)
    expect(err).toMatch(/DATABASE_URL: (?!.*hidden).*\n/)
  })

  it('accepts global options before the command', async () => {
    await using stack = await startStack()
    const around = ['--url', stack.url, `--key=${TEST_KEY}`, 'jobs', '--limit', '1']
    expect(await here(around, { env: { SLUICE_URL: NOWHERE } })).toMatchObject({ code: 0, out: '', err: '' })
    const { err } = await here(['logs', '--url', stack.url, '--key', 'key_env'])
    expect(err, 'hint at the filter, if --key has the id of a key').toContain(
      'only the calls of this key: --key-id key_env',
    )
    expect((await here(['--json', 'get', '--help'])).out).toContain('Usage: sluice get')
    expect(await here(['--json', '--help'])).toMatchObject({ code: 0, err: '' })
  })

  it('exits with code 4 and a remedy if the service is unreachable', async () => {
    const { code, err } = await sluice(['jobs', '--url', NOWHERE])
    expect(code).toBe(4)
    expect(err).toContain(`Cannot reach ${NOWHERE}`)
    expect(err).toContain('npm start')
  })

  it('exits with code 4 if a server other than Sluice responds', async () => {
    await using stack = await startStack()
    const { code, err } = await against(stack)(['jobs', '--url', `${stack.url}/healthz?`])
    expect(code).toBe(4)
    expect(err).toContain('Unexpected response from')
  })

  it("restarts itself with the project's version of Node if the current version is too old", async () => {
    const directory = await emptyDirectory()
    const old = join(directory, 'old.mjs')
    // This module, imported by NODE_OPTIONS, simulates an old version of Node. The launcher must detect the version and restart itself.
    await writeFile(
      old,
      `const versions = { ...process.versions, node: '20.11.0' }
       if (!process.env.IS_OWN) Object.defineProperty(process, 'versions', { value: versions })
       process.env.IS_OWN = '1'`,
    )
    const env = { NODE_OPTIONS: `--import=${old}` }
    expect(await sluice(['--version'], { env })).toMatchObject({ code: 0, out: `${packageJson.version}\n` })
    expect(await sluice(['fly'], { env })).toMatchObject({ code: 2 })
  })
})

describe('job commands of sluice', () => {
  it('submit and await a job, whose result equals the response of the endpoint', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const submitted = await run([
      ...chatJob('one two'),
      '--metadata',
      'team=a=b',
      '--priority',
      'low',
      '--deadline',
      '15m',
    ])
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

  it('accept the request from an option, a file or standard input', async () => {
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

  it('return the first job for a repeated idempotency key, and reject another request with that key', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const first = await run([...chatJob('one'), '--idempotency-key', 'k1'])
    await run(['get', String(first.lines[0]?.id), '--wait', '30'])
    const again = await run([...chatJob('one'), '--idempotency-key', 'k1'])
    expect(again.lines[0]?.id).toBe(first.lines[0]?.id)
    const other = await run([...chatJob('two'), '--idempotency-key', 'k1'])
    expect(other.code).toBe(5)
    expect(other.err).toContain('idempotency_key_reused')
    expect(other.err).toContain('Use another --idempotency-key.')
  })

  it('print each event of a followed job once as JSON, and exit with the code of the final status', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const { code, lines } = await run([...chatJob('!echo delay_ms=5\none two three four'), '--follow'])
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

  it('exit with code 1 and the reason for a failed job', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const followed = await run([...chatJob('!echo fail=upstream_refused'), '--follow'])
    expect(followed.code).toBe(1)
    const id = endedId(followed.lines)
    expect((await run(['get', id, '--wait', '1'])).code).toBe(1)
    expect((await run(['get', id])).code).toBe(0)
    const result = await run(['get', id, '--result'])
    expect([result.code, result.out]).toEqual([1, ''])
    expect(result.err).toContain(`sluice redrive ${id}`)
  })

  it('cancel a job, end its followers with exit code 3, and reject the cancel of a completed job', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const [job] = (await run([...chatJob('!echo first_ms=60000'), '--run-at', '10m'])).lines
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
    const late = await run(['cancel', endedId((await run([...chatJob('x'), '--follow'])).lines)])
    expect(late.code).toBe(5)
    expect(late.err).toContain('job_already_finished')
  })

  it('leave a followed job running after Ctrl-C, and print how to resume', async () => {
    await using stack = await startStack()
    const run = against(stack)
    const [job] = (await run([...chatJob('later'), '--run-at', '10m'])).lines
    const id = String(job?.id)
    const { code, err } = await run(['follow', id], {
      onStart: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    })
    expect(code).toBe(130)
    expect(err).toContain(
      `sluice follow ${id} --after 1\nTo print the result after the end: sluice get ${id} --result\n`,
    )
    expect((await run(['get', id])).lines[0]?.status).toBe('queued')
  })

  it('list the steps of a research job and report the first difference between two runs', async () => {
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

  it('end a research job early with a partial report after Ctrl-C', async () => {
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
    { first: 'during the submission', isEarly: true },
    { first: 'during the run', isEarly: false },
  ])(
    'end a research job early at a first Ctrl-C $first, and cancel the job at the second Ctrl-C',
    async ({ isEarly }) => {
      let cancels = 0
      let child: ReturnType<typeof spawn> | undefined
      const job = { id: 'job_00000000000000000000', status: 'cancelling', created_at: 1 }
      const slow = createServer((request, response) => {
        if (request.url?.endsWith('/cancel')) cancels++
        else if (isEarly && request.method === 'POST') child?.kill('SIGINT')
        // On a busy machine, SIGINT can arrive late. The response is delayed, so that the signal arrives before the submission ends.
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
      expect(err).toContain(`Cancelled ${job.id}.`)
      expect([code, cancels]).toEqual([130, 2])
    },
  )

  it.each([
    { args: ['get', 'job_00000000000000000000'], key: TEST_KEY, message: 'job_not_found' },
    { args: ['follow', 'job_00000000000000000000'], key: TEST_KEY, message: 'sluice jobs' },
    { args: ['cancel', '../models'], key: TEST_KEY, message: 'job_not_found' },
    { args: ['jobs'], key: 'sk-not-a-key-of-this', message: 'sluice keys create' },
    { args: ['jobs', '--status', 'lost'], key: TEST_KEY, message: 'Unknown status' },
    {
      args: ['submit', '--endpoint', '/v1/nothing', '--body', '{}'],
      key: TEST_KEY,
      message: 'Unknown endpoint',
    },
    { args: ['submit', '--model', 'no-such', '--prompt', 'x'], key: TEST_KEY, message: 'model_not_found' },
  ])('exit with code 5 and a remedy if the service rejects $args', async ({ args, key, message }) => {
    await using stack = await startStack()
    const { code, out, err } = await against(stack)(args, { env: { SLUICE_API_KEY: key } })
    expect(err).toContain(message)
    expect([code, out]).toEqual([5, ''])
  })
})

describe('job list commands of sluice', () => {
  async function startWithFailures(): Promise<{ stack: Stack; failed: string[] }> {
    const stack = await startStack()
    const run = against(stack)
    const failed: string[] = []
    for (const code of ['upstream_refused', 'internal_error']) {
      const { lines } = await run([...chatJob(`!echo fail=${code}`), '--follow'])
      failed.push(endedId(lines))
    }
    await run([...chatJob('fine'), '--follow'])
    return { stack, failed }
  }

  it('list the newest jobs first, filtered by status and endpoint, up to --limit', async () => {
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

  it('list failed jobs in a dry run, and redrive each of them once, up to --max', async () => {
    const { stack, failed } = await startWithFailures()
    await using _ = stack
    const run = against(stack)
    const dry = await run(['redrive', '--status', 'failed', '--since', '1h', '--dry-run'])
    expect(dry.code).toBe(0)
    expect(dry.err).toContain('Dry run: nothing was changed. To redrive these 2 jobs, omit --dry-run.')
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
    // Two failed jobs remain: the new job of the redrive, which failed again, and the job that --max 1 left unchanged.
    const rest = await run(['redrive', '--status', 'failed', '--dry-run'])
    expect(rest.lines.map(({ id }) => id)).toEqual([newId, failed[0]])
  })

  it('redrive jobs by id, and continue with the next job after a rejected job', async () => {
    const { stack, failed } = await startWithFailures()
    await using _ = stack
    const run = against(stack)
    const [completed] = (await run(['jobs', '--status', 'completed'])).lines
    const { code, lines, err } = await run(['redrive', String(completed?.id), ...failed])
    expect(code).toBe(5)
    expect(err).toContain('1 of 3 jobs were rejected.')
    expect(lines).toMatchObject([{ error: expect.any(String) }, { id: failed[0] }, { id: failed[1] }])
    const alone = await run(['redrive', String(completed?.id)])
    expect([alone.code, alone.out]).toEqual([5, ''])
    expect((await run(['redrive', ...failed, '--max', '1'])).code).toBe(2)
  })
})

describe.each([
  { name: 'keys.json', isThere: true },
  { name: 'Postgres', isThere: postgres !== null },
])('key commands of sluice with a key store in $name', ({ name, isThere }) => {
  async function keyStoreEnvironment(): Promise<Record<string, string>> {
    if (name === 'keys.json') return { DATA_DIR: await emptyDirectory() }
    const database = await openPostgresDatabase(postgres ?? '')
    onTestFinished(() => database[Symbol.asyncDispose]())
    return { DATABASE_URL: database.url }
  }

  it.skipIf(!isThere)('create a key, list keys without secrets, and revoke a key', async () => {
    const env = await keyStoreEnvironment()
    const made = await here(['keys', 'create', '--name', 'ci', '--endpoints', '/v1/jobs, /v1/models'], { env })
    expect(made.code).toBe(0)
    const [key] = made.lines
    expect(key).toMatchObject({ name: 'ci', endpoints: ['/v1/jobs', '/v1/models'], revoked: false })
    expect(key?.secret).toMatch(/^sk-[\w-]{40}$/)
    const listed = await here(['keys', 'list', '-o', 'json'], { env })
    const { secret, ...shown } = key ?? {}
    expect(listed.lines).toEqual([shown])
    expect(listed.out).not.toContain(String(secret))
    expect((await here(['keys', 'revoke', String(key?.id)], { env })).lines).toMatchObject([{ revoked: true }])
    expect((await here(['keys', 'list'], { env })).lines).toMatchObject([{ revoked: true }])
    const unknown = await here(['keys', 'revoke', 'key_none'], { env })
    expect([unknown.code, unknown.out]).toEqual([5, ''])
  })
})

describe('key commands of sluice', () => {
  it.each([
    { args: ['--endpoints', '/v1/chat'], message: 'Valid values: /v1/chat/completions, /v1/completions,' },
    { args: ['--endpoints', '/v1/jobs,/v1/chats'], message: "--endpoints: unknown endpoint '/v1/chats'." },
    { args: ['--models', 'echo-1,gpt-9'], message: 'Valid values: echo-1' },
  ])('reject invalid values with the list of valid values: $args', async ({ args, message }) => {
    const directory = await emptyDirectory()
    const modelsFile = join(directory, 'models.yaml')
    await writeFile(modelsFile, JSON.stringify({ models: [ECHO_MODEL] }))
    const env = { DATA_DIR: directory, MODELS_FILE: modelsFile }
    const { code, err } = await here(['keys', 'create', ...args], { env })
    expect([code, err]).toEqual([2, expect.stringContaining(message)])
    expect((await here(['keys', 'list'], { env })).lines).toEqual([])
  })

  it('store the model id if the model is given by its alias', async () => {
    const directory = await emptyDirectory()
    const modelsFile = join(directory, 'models.yaml')
    await writeFile(modelsFile, JSON.stringify({ models: [{ ...ECHO_MODEL, aliases: ['parrot'] }] }))
    const env = { DATA_DIR: directory, MODELS_FILE: modelsFile }
    const { lines } = await here(['keys', 'create', '--models', 'parrot'], { env })
    expect(lines).toMatchObject([{ models: ['echo-1'] }])
  })

  it('take effect in a running service: a created key becomes valid, and a revoked key invalid', async () => {
    await using stack = await startStack()
    const env = { DATA_DIR: stack.dataDir }
    const made = await here(['keys', 'create'], { env })
    expect(made.err).toContain(join(stack.dataDir, 'keys.json'))
    const [key] = made.lines
    const status = async () =>
      (await stack.get('/v1/models', { headers: { authorization: `Bearer ${key?.secret}` } })).status
    await until(async () => (await status()) === 200)
    await here(['keys', 'revoke', String(key?.id)], { env })
    await until(async () => (await status()) === 401)
  })

  it('exit with code 4 if the store is unreachable', async () => {
    const { code, err } = await here(['keys', 'list'], {
      env: { DATABASE_URL: 'postgres://sluice:secret@127.0.0.1:1/sluice' },
    })
    expect(code).toBe(4)
    expect(err).toContain('ECONNREFUSED')
    expect(err).not.toContain('secret')
  })

  it('leave a corrupt keys.json unchanged', async () => {
    const directory = await emptyDirectory()
    await writeFile(join(directory, 'keys.json'), '{')
    const { code, err } = await here(['keys', 'create'], { env: { DATA_DIR: directory } })
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

  it('reports no problem of a running service', async () => {
    await using stack = await startStack()
    const env = { ...(await place()), SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY }
    const ran = await here(['doctor', '--json'], { env })
    expect(ran.code).toBe(0)
    // `doctor` skips checks of dependencies that are switched off, or that a single-process service does not need.
    const unneeded = ['postgres', 'kafka', 'sandbox']
    expect(ran.lines.map(({ check, status }) => `${check} ${status}`)).toEqual([
      ...['node', 'settings', 'data', 'models', 'postgres', 'kafka', 'sandbox', 'service', 'key'].map(
        (check) => `${check} ${unneeded.includes(check) ? 'skip' : 'ok'}`,
      ),
      ...['settings skip', 'fleet skip', 'calls ok'],
    ])
    const [own, ofService] = of(ran, 'settings').map(({ message }) => message)
    expect(own).toBe('valid in this directory and environment')
    expect(ofService).toBe(
      `only the settings of this directory and environment were checked; the service at ${stack.url} shows the results of its own checks only to a key with the admin scope`,
    )
    for (const check of unneeded) expect(of(ran, check)[0]?.message).toMatch(/^not needed: /)
    const people = await here(['doctor'], { env })
    expect(people.out.split('\n')[0]).toMatch(/^OK {4}node {2,}24\./)
  })

  it('reports each check whose result differs from the result of the same check in the running service', async () => {
    await using stack = await startStack({ settings: { FIRST_KEY_ADMIN: 'true' } })
    const env = { ...(await place()), SLUICE_API_KEY: TEST_KEY }
    const { code, lines } = await here(['doctor', '--json', '--url', stack.url], { env })
    const at = lines.findIndex(({ check, status }) => check === 'settings' && status === 'warn')
    expect([code, lines[at]?.message]).toEqual([
      0,
      `the checks of the service at ${stack.url} have other results than the checks here`,
    ])
    const models = lines.filter(({ check }) => check === 'models').map(({ message }) => String(message))
    expect(models).toEqual([
      expect.stringContaining(env.MODELS_FILE),
      expect.stringMatching(/^in the service: .+: echo-1$/),
    ])
    const same = { ...env, DATA_DIR: stack.dataDir, MODELS_FILE: join(stack.dataDir, 'models.yaml') }
    const again = await here(['doctor', '--json', '--url', stack.url], { env: same })
    expect(of(again, 'settings').at(-1)?.message).toBe(`the service at ${stack.url} has the same results`)
  })

  it('reports a remedy for every problem and exits with code 1', async () => {
    const models = { ...ECHO_MODEL, id: 'far', engine: { type: 'openai', base_url: 'http://x/v1', api_key_env: 'FAR' } }
    const llama = { ...ECHO_MODEL, id: 'own', engine: { type: 'llama', file: 'missing.gguf' } }
    const env = await place(JSON.stringify({ models: [models, llama] }))
    await writeFile(env.DATA_DIR, 'in the way')
    const ran = await here(['doctor', '--json'], {
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
    for (const { status, remediation } of ran.lines)
      expect(typeof remediation).toBe(['ok', 'skip'].includes(String(status)) ? 'undefined' : 'string')
    expect(of(ran, 'data')[0]?.message).toBe(`${env.DATA_DIR} is not a directory`)
  })

  it('warns about an unreachable default address or a missing key, but exits with code 0', async () => {
    const ran = await here(['doctor', '--json'], { env: await place() })
    // The check `service` may also have the status `ok`, because another service may listen on the default address of the test machine.
    expect(of(ran, 'service')).toMatchObject([{ status: expect.stringMatching(/ok|warn/) }])
    await using stack = await startStack()
    const keyless = await here(['doctor', '--json'], { env: { ...(await place()), SLUICE_URL: stack.url } })
    expect([keyless.code, of(keyless, 'key')]).toMatchObject([0, [{ status: 'warn' }]])
    const wrong = { ...(await place()), SLUICE_URL: stack.url, SLUICE_API_KEY: 'sk-not-a-key-of-this' }
    expect(of(await here(['doctor', '--json'], { env: wrong }), 'key')).toMatchObject([{ status: 'fail' }])
  })

  it('checks the settings first, and skips checks that depend on an invalid setting', async () => {
    const ran = await here(['doctor', '--json'], { env: { PORT: 'x', DRAIN_MS: '-1' } })
    expect(ran.code).toBe(1)
    expect(of(ran, 'settings').map(({ message }) => String(message).split(':')[0])).toEqual(['PORT', 'DRAIN_MS'])
    expect(ran.lines).toHaveLength(3)
  })

  it('reports an invalid models file', async () => {
    const ran = await here(['doctor', '--json'], { env: await place('models: [{id: 1}]') })
    expect([ran.code, of(ran, 'models')]).toMatchObject([1, [{ status: 'fail', remediation: expect.any(String) }]])
  })

  it.skipIf(SANDBOX_MISSING !== undefined)('opens the sandbox and reports its guarantees', async () => {
    const env = { ...(await place()), DATA_DIR: dirname(SANDBOX_DIR), SANDBOX: 'zygote' }
    const [found] = of(await sluice(['doctor', '--json'], { env }), 'sandbox')
    expect(found).toMatchObject({
      status: 'ok',
      message: expect.stringMatching(/^zygote works and is used: .*numpy/),
      details: expect.arrayContaining([expect.stringContaining('namespaces')]),
    })
  })

  it.skipIf(SANDBOX_MISSING !== undefined)(
    'skips sandboxes that SANDBOX=auto does not need, and reports why',
    async () => {
      const env = { ...(await place()), DATA_DIR: dirname(SANDBOX_DIR), SANDBOX: 'auto' }
      for (const { status, message } of of(await sluice(['doctor', '--json'], { env }), 'sandbox')) {
        expect(`${status} ${message}`).toMatch(
          /^(ok \w+ works( and is used|, but is not used): |skip \w+ does not work \(.+\)\. It is not needed, because \w+ is used\.$)/,
        )
      }
    },
  )

  it('reports why the selected sandbox is unavailable, and downloads nothing', async () => {
    const env = { ...(await place()), SANDBOX: 'wasm' }
    const [found] = of(await sluice(['doctor', '--json'], { env }), 'sandbox')
    expect(found).toMatchObject({ status: 'fail', message: expect.stringMatching(/^wasm is not available/) })
  })

  it('leaves the data directory unchanged', async () => {
    const env = { ...(await place()), SANDBOX: 'auto' }
    await mkdir(env.DATA_DIR)
    expect(of(await here(['doctor', '--json'], { env }), 'data')).toMatchObject([{ status: 'ok' }])
    expect(await readdir(env.DATA_DIR)).toEqual([])
  })

  it.skipIf(!postgres)('reports whether the database schema is up to date, and changes nothing', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const env = { ...(await place()), DATABASE_URL: database.url }
    const check = async () => of(await here(['doctor', '--json'], { env }), 'postgres')
    expect(await check()).toMatchObject([
      { status: 'ok', message: expect.stringContaining('migrations at the next start: 001') },
    ])
    expect(await database.query("SELECT to_regclass('migrations') AS found")).toEqual([{ found: null }])
    await database.open()
    expect(await check()).toMatchObject([{ status: 'ok', message: expect.stringContaining('schema up to date') }])
    await database.query("UPDATE migrations SET hash = 'other'")
    expect(await check()).toMatchObject([
      { status: 'fail', message: expect.stringContaining('differs from the one applied') },
    ])
  })

  it.skipIf(!kafka)('reports whether Kafka supports share groups', async () => {
    const env = { ...(await place()), KAFKA_BROKERS: kafka ?? '', KAFKA_PREFIX: 'doctor.' }
    expect(of(await here(['doctor', '--json'], { env }), 'kafka')).toMatchObject([
      { status: 'ok', message: expect.stringContaining('with share groups') },
    ])
  })
})
