import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { ENVIRONMENT } from '../support/processes/environment.ts'
import { freePorts } from '../support/processes/free-ports.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../support/stack.ts'
import { RoleActor } from './load/actor.ts'
import { readJob, submitMany } from './load/calls.ts'

describe('a service in a single process', { timeout: 120_000 }, () => {
  it('completes 100 running and queued jobs after it is killed and restarted', async () => {
    await using single = await startSingle()
    const { process } = single
    const ids = await submitMany(process.url, 100, '!echo first_ms=3000\nslow and sure')
    await until(async () => (await readJob(process.url, ids[0] ?? '')).status === 'in_progress')
    await process.down('SIGKILL')
    await process.up()
    await until(() => process.isReady(), { withinMs: 30_000 })
    for (const id of ids) {
      const isDone = async () => {
        const job = await readJob(process.url, id)
        return job.status === 'completed' ? job : undefined
      }
      const { result } = await until(isDone, { withinMs: 60_000 })
      expect(result).toMatchObject({ choices: [{ message: { content: 'slow and sure' } }] })
    }
  })

  it('locks its data directory, so that a second process exits with code 2 and logs the pid of the first', async () => {
    await using single = await startSingle()
    const second = single.another()
    await second.actor.up()
    const code = await second.exited
    await second.actor.down('SIGKILL')
    expect(code).toBe('2')
    const who = new RegExp(`${single.dataDir}.* is open in process ${single.process.pid} `)
    expect(await readFile(second.logFile, 'utf8')).toMatch(who)
  })
})

/** Runs `npm start` with a data directory of its own and the embedded adapters. */
async function startSingle() {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-single-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: [ECHO_MODEL] }))
  const ports = await freePorts(2)
  const actorOn = (port: number | undefined, logFile: string, onExit: (code: string) => void) =>
    new RoleActor({
      name: 'single',
      roles: [],
      env: {
        ...ENVIRONMENT,
        PORT: String(port),
        DATA_DIR: dataDir,
        MODELS_FILE: modelsFile,
        SANDBOX: 'off',
        SLUICE_API_KEY: TEST_KEY,
      },
      logFile,
      url: `http://127.0.0.1:${port}`,
      onExit: (_name, code) => onExit(code),
    })
  const first = actorOn(ports[0], join(dataDir, 'first.log'), () => undefined)
  await first.up()
  await until(() => first.isReady(), { withinMs: 30_000 })
  return {
    dataDir,
    process: first,
    another() {
      const { promise, resolve } = Promise.withResolvers<string>()
      const logFile = join(dataDir, 'second.log')
      return { actor: actorOn(ports[1], logFile, resolve), exited: promise, logFile }
    },
    async [Symbol.asyncDispose]() {
      await first.down('SIGKILL')
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}
