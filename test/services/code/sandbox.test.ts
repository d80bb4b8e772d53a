import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { startCode } from '#services/code/code.ts'
import { parseConfig } from '#shared/config/config.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import { ChosenSandbox, type LoadAdapter } from '#shared/sandbox/choose.ts'
import type { SandboxEnd } from '#shared/sandbox/sandbox.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { CODE, framesOf, run, scriptedAdapter } from '../../support/sandbox/code-calls.ts'
import { type Stack, type StackOptions, startStack, until } from '../../support/stack.ts'

const DONE: SandboxEnd = { type: 'exit', exitCode: 0 }

function refusing(message: string): LoadAdapter {
  const prepare = () => Promise.reject(new ServiceError('sandbox_unavailable', message))
  return scriptedAdapter(() => DONE, { prepare })
}

async function failureOf(stack: Stack, more: object = {}) {
  const response = await stack.post(CODE, { code: 'print(1)', lang: 'python', ...more })
  const { error } = (await response.json()) as { error: { code: string; message: string } }
  return { status: response.status, retryAfter: Number(response.headers.get('retry-after')), ...error }
}

const stackOf = (...sandboxes: LoadAdapter[]) => startStack({ sandboxes } satisfies StackOptions)

it('the code worker uses the first sandbox that can be prepared and opened', async () => {
  let opened = 0
  const open = () => {
    opened++
    return Promise.reject(new ServiceError('sandbox_unavailable', 'It does not start.'))
  }
  const broken = scriptedAdapter(() => DONE, { open })
  await using stack = await stackOf(
    refusing('There is no daemon.'),
    broken,
    scriptedAdapter(() => DONE),
  )
  expect(await run(stack, 'print(1)')).toMatchObject({ success: true, stdout: 'before\n' })
  expect(opened).toBe(1)
})

it('code calls get 503 if no sandbox opens, with the reason for each sandbox', async () => {
  await using stack = await stackOf(refusing('There is no daemon.'), refusing('There is no bwrap.'))
  const { status, retryAfter, code, message } = await failureOf(stack)
  expect([status, code]).toEqual([503, 'sandbox_unavailable'])
  expect(retryAfter).toBeGreaterThan(5)
  expect(message).toMatch(/There is no daemon\..*There is no bwrap\./)
})

/** A preparation of a sandbox that reports a progress of 42 % and then hangs until it is aborted. */
const endless: Parameters<typeof scriptedAdapter>[1] = {
  prepare(onProgress, signal) {
    onProgress(0.42, 'installing numpy')
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  },
}

it('a code call waits for the sandbox until the deadline of the call, and then gets 503 with the progress of the preparation', async () => {
  const sandboxes = [scriptedAdapter(() => DONE, endless)]
  await using stack = await startStack({ sandboxes, settings: { REQUEST_TIMEOUT_MS: '3000' } })
  const { status, retryAfter, code, message } = await failureOf(stack)
  expect([status, code]).toEqual([503, 'sandbox_unavailable'])
  expect(retryAfter).toBeGreaterThan(5)
  expect(message).toContain('42 %, installing numpy')
})

it('a streamed code call receives the progress of the sandbox preparation as SSE comments', async () => {
  const stack = await stackOf(scriptedAdapter(() => DONE, endless))
  const { body } = await stack.post(CODE, { code: 'print(1)', lang: 'python', stream: true })
  let text = ''
  const reading = (async () => {
    for await (const piece of body ?? []) text += Buffer.from(piece).toString()
  })()
  await until(() => text.includes(': preparing the sandbox for code: 42 %, installing numpy\n\n'))
  await stack[Symbol.asyncDispose]()
  await reading
  expect(text).toContain('"code":"overloaded"')
})

it('a code call that arrives during the selection of a sandbox waits until the sandbox is open', async () => {
  const looked = Promise.withResolvers<void>()
  const load: LoadAdapter['load'] = async () => {
    await looked.promise
    return await scriptedAdapter(() => DONE).load()
  }
  await using stack = await stackOf({ name: 'wasm', load })
  const answer = run(stack, 'print(1)')
  await until(async () => (await (await stack.get('/metrics')).text()).includes('sluice_pool_running{pool="code"} 1'))
  looked.resolve()
  expect(await answer).toMatchObject({ success: true })
})

it('code calls get 503 if sandboxes are disabled', async () => {
  await using stack = await stackOf()
  expect(await failureOf(stack)).toMatchObject({ status: 503, code: 'sandbox_unavailable' })
})

it('a code run is retried once if its sandbox fails', async () => {
  const lostOnce = scriptedAdapter((count) => {
    if (count === 1) throw new ServiceError('sandbox_lost', 'The sandbox broke.')
    return DONE
  })
  await using stack = await stackOf(lostOnce)
  expect(await run(stack, 'print(1)')).toMatchObject({ success: true, stdout: 'before\n' })
})

it('a code run returns an error, not a result, if its sandbox fails twice', async () => {
  let runs = 0
  const lost = scriptedAdapter((count) => {
    runs = count
    throw new ServiceError('sandbox_lost', 'The sandbox broke.')
  })
  await using stack = await stackOf(lost)
  expect(await failureOf(stack)).toMatchObject({ status: 500, code: 'sandbox_lost' })
  expect(runs).toBe(2)
})

it('a code run is not retried after its output was streamed', async () => {
  let runs = 0
  const lost = scriptedAdapter(async (count) => {
    runs = count
    throw new ServiceError('sandbox_lost', 'The sandbox broke.')
  })
  await using stack = await stackOf(lost)
  const response = await stack.post(CODE, { code: 'print(1)', lang: 'python', stream: true })
  expect(framesOf(await response.text())).toMatchObject([{ text: 'before\n' }, { error: { code: 'sandbox_lost' } }])
  expect(runs).toBe(1)
})

it('the code worker opens a new sandbox if the current sandbox cannot start runs', async () => {
  let opened = 0
  const dying = scriptedAdapter(() => {
    if (opened === 1) throw new ServiceError('sandbox_unavailable', 'The daemon is gone.')
    return DONE
  })
  const load: LoadAdapter['load'] = async () => {
    const adapter = await dying.load()
    return {
      ...adapter,
      open: (signal) => {
        opened++
        return adapter.open(signal)
      },
    }
  }
  await using stack = await stackOf({ name: 'wasm', load })
  expect(await run(stack, 'print(1)')).toMatchObject({ success: true })
  expect(opened).toBe(2)
})

it('a code run that exceeds a limit returns a result that names the limit', async () => {
  const killed = scriptedAdapter(() => ({ type: 'killed', message: 'the memory limit of 512 MiB was exceeded.' }))
  await using stack = await stackOf(killed)
  expect(await run(stack, 'print(1)')).toMatchObject({
    success: false,
    stdout: 'before\n',
    stderr: 'Execution failed: the memory limit of 512 MiB was exceeded.\n',
    exit_code: -1,
    violations: [],
  })
})

it('the execution time of a code run excludes the wait for a sandbox slot', async () => {
  const load: LoadAdapter['load'] = async () => {
    const adapter = await scriptedAdapter(() => DONE).load()
    const open: typeof adapter.open = async (signal) => ({
      ...(await adapter.open(signal)),
      async run(_job, _onEvent, _signal, onStart) {
        await new Promise((resolve) => setTimeout(resolve, 1_500))
        onStart?.()
        return DONE
      },
    })
    return { ...adapter, open }
  }
  await using stack = await stackOf({ name: 'wasm', load })
  expect((await run(stack, 'print(1)')).execution_time).toBeLessThan(1)
})

/** Starts only the code worker, without an ingress. In a fleet, the code worker runs in a process of its own. */
async function startRole(...sandboxes: LoadAdapter[]) {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-code-'))
  const config = parseConfig({ DATA_DIR: dataDir, MODELS_FILE: 'models.yaml', LOG_LEVEL: 'silent' })
  const ports = await openPorts(config, silentLog, 'test', false, () => {}, sandboxes)
  const service = await startCode(ports)
  onTestFinished(async () => {
    await stopAll([portsService(ports), service], 1_000, silentLog)
    await rm(dataDir, { recursive: true, force: true })
  })
  return service
}

it('a code worker in its own process is not ready without an open sandbox, and reports the reason', async () => {
  const service = await startRole(refusing('There is no daemon.'))
  await until(() => service.problems().join().includes('There is no daemon.'))
})

it('a code worker in its own process is ready after its sandbox has opened, even before the first run', async () => {
  const opened = Promise.withResolvers<void>()
  const load: LoadAdapter['load'] = async () => {
    const adapter = await scriptedAdapter(() => DONE).load()
    return { ...adapter, open: (signal) => opened.promise.then(() => adapter.open(signal)) }
  }
  const service = await startRole({ name: 'wasm', load })
  expect(service.problems()).toEqual([expect.stringContaining('being opened')])
  opened.resolve()
  await until(() => service.problems().length === 0)
})

it('the code worker retries opening a sandbox after a failure', async () => {
  let tries = 0
  const load: LoadAdapter['load'] = async () => {
    if (++tries === 1) throw new ServiceError('sandbox_unavailable', 'There is no daemon yet.')
    return await scriptedAdapter(() => DONE).load()
  }
  const adapters = [{ name: 'wasm', load }] as const
  const sandbox = new ChosenSandbox({ adapters, isEager: true, log: silentLog, retryDelayMs: 10 })
  const { signal } = new AbortController()
  await expect(sandbox.prepare(() => {}, signal)).rejects.toMatchObject({ code: 'sandbox_unavailable' })
  await until(() => sandbox.problems().length === 0)
  expect((await sandbox.get(signal)).name).toBe('wasm')
  await sandbox.close()
})
