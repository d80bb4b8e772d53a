/**
 * Tests features that only the docker adapter has. The guarantees of every sandbox are tested in
 * `test/shared/sandbox/conformance/docker.test.ts`.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import Docker from 'dockerode'
import { beforeAll, describe, expect, inject, it } from 'vitest'
import { openLog } from '#shared/log/log.ts'
import { LABEL } from '#shared/sandbox/docker/container.ts'
import { dockerAdapter, removeLeftovers } from '#shared/sandbox/docker/docker.ts'
import { PREPARE_MS, SANDBOX_DIRECTORY } from '../../support/sandbox/adapters.ts'
import { runCode } from '../../support/sandbox/runs.ts'
import { until } from '../../support/stack.ts'

const socketPath = inject('docker') ?? undefined
const log = openLog('silent', 'test')
const WITHIN_MS = 120_000

const adapter = (options: { runtime?: string; image?: string; socketPath?: string } = {}) =>
  dockerAdapter({ directory: SANDBOX_DIRECTORY, log, ...(socketPath === undefined ? {} : { socketPath }), ...options })

describe.skipIf(socketPath === undefined)('the Docker sandbox', () => {
  const docker = new Docker(socketPath === undefined ? {} : { socketPath })
  /** Lists the containers that the process `pid` has started. Other tests may have containers on the same daemon. */
  const containersOf = async (pid = 0, all = false) => {
    const found = await docker.listContainers({ all, filters: { label: [`${LABEL}=${pid}`] } })
    return found.map(({ Id }) => Id)
  }

  beforeAll(async () => {
    await adapter().prepare(() => {}, AbortSignal.timeout(PREPARE_MS))
  }, PREPARE_MS)

  it('leaves no running container if its service is killed during runs', {
    timeout: WITHIN_MS,
  }, async () => {
    await using service = await startService(socketPath as string)
    await until(async () => (await containersOf(service.pid)).length > 1, { withinMs: 60_000 })
    service.kill()
    await until(async () => (await containersOf(service.pid)).length === 0, { withinMs: 15_000 })
  })

  it('removes containers that a killed service created but never started', { timeout: WITHIN_MS }, async () => {
    const [{ RepoTags } = { RepoTags: undefined }] = await docker.listImages({
      filters: { reference: ['sluice-sandbox'] },
    })
    const left = await docker.createContainer({ Image: RepoTags?.[0] ?? '', Labels: { [LABEL]: '0' }, Cmd: ['x'] })
    await removeLeftovers(docker, log)
    expect(await containersOf(0, true)).toContain(left.id)
    await removeLeftovers(docker, log, 0)
    expect(await containersOf(0, true)).not.toContain(left.id)
  })

  it('hides network, host name, capabilities and user of the machine from a run', { timeout: WITHIN_MS }, async () => {
    const sandbox = await adapter().open(AbortSignal.timeout(WITHIN_MS))
    const code = [
      'import os',
      "print(os.listdir('/sys'), open('/etc/resolv.conf').read(), open('/etc/hosts').read(), os.uname().nodename)",
      "print(open('/proc/self/status').read())",
    ].join('\n')
    const { stdout } = await runCode(sandbox, code)
    await sandbox.close()
    expect(stdout.split('\n')[0]).toBe('[]   sandbox')
    expect(stdout).toMatch(/CapBnd:\s+0+\n/)
    expect(stdout).toMatch(/NoNewPrivs:\s+1\n/)
    expect(stdout).toMatch(/Uid:\s+65534\s+65534/)
  })

  it('returns plots, whether the sandbox or the program loads matplotlib', {
    timeout: WITHIN_MS,
  }, async () => {
    const sandbox = await adapter().open(AbortSignal.timeout(WITHIN_MS))
    const draw = (name: string) =>
      `import importlib
plt = importlib.import_module(${name})
plt.plot([1]); plt.show(); plt.figure().show()
print(plt.get_backend(), importlib.import_module('matplot' + 'lib').use('nothing'))`
    // The second program computes the name of the library, so a search in the program's text does not find it. There are more concurrent programs
    // than ready containers, so some run in new containers.
    const names = ["'matplotlib.pyplot'", "'matplot' + 'lib.pyplot'"]
    const results = await Promise.all(
      [...names, ...names, ...names].map((name) => runCode(sandbox, draw(name), { timeoutMs: 60_000 })),
    )
    await sandbox.close()
    for (const result of results) expect(result).toMatchObject({ exit_code: 0, stderr: '', stdout: 'agg None\n' })
    expect(results.map(({ plots }) => plots.length)).toEqual(results.map(() => 2))
  })

  it('refuses an unknown runtime with sandbox_unavailable, and lists the runtimes of the daemon', async () => {
    const refused = adapter({ runtime: 'nothing' }).prepare(() => {}, AbortSignal.timeout(10_000))
    await expect(refused).rejects.toMatchObject({
      code: 'sandbox_unavailable',
      message: expect.stringMatching(/no runtime nothing \(it has .*runc.*\)/),
    })
  })
})

it('the Docker sandbox fails with sandbox_unavailable if no Docker daemon responds', async () => {
  const refused = adapter({ socketPath: '/nonexistent/docker.sock' }).prepare(() => {}, AbortSignal.timeout(10_000))
  await expect(refused).rejects.toMatchObject({
    code: 'sandbox_unavailable',
    message: 'No Docker daemon responds. Start one, or set DOCKER_HOST.',
  })
})

/** Starts a process that runs programs endlessly in its sandbox, for tests that kill it. */
async function startService(socket: string) {
  const script = `
    import { dockerAdapter } from '#shared/sandbox/docker/docker.ts'
    import { openLog } from '#shared/log/log.ts'
    const [directory, socketPath] = process.argv.slice(1)
    const adapter = dockerAdapter({ directory, socketPath, log: openLog('silent', 'test') })
    const sandbox = await adapter.open(AbortSignal.timeout(60_000))
    const job = { code: 'import time; time.sleep(60)', timeoutMs: 60_000, scan: false }
    for (let i = 0; i < 2; i++) void sandbox.run(job, () => {}, AbortSignal.timeout(60_000))
    setInterval(() => {}, 1_000)
    console.log('running')
  `
  const child = spawn(process.execPath, ['--input-type=module', '-e', script, SANDBOX_DIRECTORY, socket], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  await once(child.stdout, 'data')
  const kill = () => child.kill('SIGKILL')
  return {
    pid: child.pid,
    kill,
    [Symbol.asyncDispose]: async () => {
      kill()
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    },
  }
}
