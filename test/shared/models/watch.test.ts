import { mkdir, mkdtemp, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { ConfigError } from '#shared/config/config.ts'
import { loadModels } from '#shared/models/models.ts'
import { type Script, type ScriptedUpstream, startUpstream } from '../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../support/stack.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'sluice-models-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

const modelOn = (id: string, { url }: ScriptedUpstream, more: object = {}) => ({
  id,
  engine: { type: 'openai', base_url: `${url}/v1`, ...more },
})

const answering =
  (content: string): Script =>
  (_call, answer) =>
    answer.json({ choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }], usage: {} })

async function write(path: string, models: readonly object[]): Promise<string> {
  await writeFile(path, stringify({ models }))
  return path
}

function call(stack: Stack, model: string): Promise<Response> {
  return stack.post('/v1/chat/completions', { model, messages: [{ role: 'user', content: 'Hello' }] })
}

// biome-ignore lint/suspicious/noExplicitAny: responses of the service are under test
const json = (response: Response): Promise<any> => response.json()

const textOf = async (response: Response) => (await json(response)).choices[0].message.content

async function errorOf(response: Response): Promise<{ code: string; message: string }> {
  return (await json(response)).error
}

async function namesOf(stack: Stack): Promise<string[]> {
  return (await json(await stack.get('/v1/models'))).data.map(({ id }: { id: string }) => id)
}

async function metric(stack: Stack, name: string): Promise<number> {
  const text = await (await stack.get('/metrics')).text()
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.split(' ')[1],
  )
}

test('a model added to models.yaml is served, and calls of a removed model are refused with 404', async () => {
  let finish = () => {}
  const waiting: Script = (received, answer) =>
    new Promise((resolve) => {
      finish = () => resolve(answering('old')(received, answer) as undefined)
    })
  await using old = await startUpstream(waiting)
  await using next = await startUpstream(answering('new'))
  await using stack = await startStack({ models: [modelOn('old', old)] })
  const running = call(stack, 'old')
  await until(() => old.calls.length === 1)
  await write(join(stack.dataDir, 'models.yaml'), [modelOn('new', next)])
  await until(async () => (await namesOf(stack)).includes('new'))
  expect(await textOf(await call(stack, 'new'))).toBe('new')
  const refused = await call(stack, 'old')
  expect([refused.status, (await errorOf(refused)).code]).toEqual([404, 'model_not_found'])
  finish()
  expect(await textOf(await running)).toBe('old')
  await until(() => old.connections === 0)
})

test('changes of a model in models.yaml apply to later calls', async () => {
  await using first = await startUpstream(answering('first'))
  await using second = await startUpstream(() => {})
  await using stack = await startStack({ models: [modelOn('m', first)] })
  expect(await textOf(await call(stack, 'm'))).toBe('first')
  await write(join(stack.dataDir, 'models.yaml'), [modelOn('m', second, { concurrency: 2 })])
  await until(() => first.connections === 0)
  const calls = Array.from({ length: 5 }, () => call(stack, 'm'))
  await until(() => second.calls.length === 2)
  second.script(answering('second'))
  await until(async () => (await metric(stack, 'sluice_pool_running{pool="inference"}')) === 2)
  expect(second.calls).toHaveLength(2)
  void Promise.allSettled(calls)
})

test('an invalid models.yaml is reported by a metric, and the old models stay until the file is corrected', async () => {
  await using stack = await startStack()
  const file = join(stack.dataDir, 'models.yaml')
  await writeFile(file, 'models: [{id: echo-1, engine: {type: eco}}]')
  await until(async () => (await metric(stack, 'sluice_model_config_invalid')) === 1)
  expect(await namesOf(stack)).toEqual(['echo-1'])
  expect((await call(stack, 'echo-1')).status).toBe(200)
  await write(file, [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2' }])
  await until(async () => (await metric(stack, 'sluice_model_config_invalid')) === 0)
  expect((await call(stack, 'echo-2')).status).toBe(200)
})

test('a large, incomplete or missing models.yaml does not block calls, and the models stay the same', async () => {
  await using stack = await startStack()
  const file = join(stack.dataDir, 'models.yaml')
  const isWrong = async () => (await metric(stack, 'sluice_model_config_invalid')) === 1
  const right = await readFile(file)
  const lag = monitorEventLoopDelay({ resolution: 1 })
  await writeFile(file, `models: [${'a,'.repeat(200_000)}]`)
  lag.enable()
  for (let storm = 0; storm < 50; storm++) process.emit('SIGHUP', 'SIGHUP')
  await until(isWrong, { withinMs: 40_000 })
  lag.disable()
  // The file is parsed in another thread. If it were parsed in this thread, then the event loop would be blocked for seconds.
  expect(lag.max / 1e6).toBeLessThan(1_000)
  await writeFile(file, right)
  await until(async () => !(await isWrong()))
  await writeFile(file, right.subarray(0, right.length / 2))
  await until(isWrong)
  await rm(file)
  await until(isWrong)
  expect(await namesOf(stack)).toEqual(['echo-1'])
  await writeFile(file, right)
  await until(async () => !(await isWrong()))
})

test('a models.yaml mounted through symbolic links is reloaded if one of the links changes', async () => {
  for (const [version, models] of [[ECHO_MODEL], [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2' }]].entries()) {
    await mkdir(join(dir, `v${version}`))
    await write(join(dir, `v${version}`, 'models.yaml'), models)
  }
  await symlink('v0', join(dir, '..data'))
  await symlink('..data/models.yaml', join(dir, 'models.yaml'))
  await using stack = await startStack({ settings: { MODELS_FILE: join(dir, 'models.yaml') } })
  await symlink('v1', join(dir, '..tmp'))
  await rename(join(dir, '..tmp'), join(dir, '..data'))
  await until(async () => (await namesOf(stack)).length === 2)
})

test('a worker serves only the models in MODELS, and calls of other models fail with status 503', async () => {
  const models = [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2', aliases: ['second'] }]
  await using stack = await startStack({ models, settings: { MODELS: 'second', START_TIMEOUT_MS: '1500' } })
  expect((await call(stack, 'echo-2')).status).toBe(200)
  const refused = await call(stack, 'echo-1')
  expect([refused.status, (await errorOf(refused)).message]).toEqual([
    503,
    "No inference worker has the model 'echo-1'. Try again later.",
  ])
})

test('the start fails with a list of similar models if MODELS contains an unknown model', async () => {
  const path = await write(join(dir, 'models.yaml'), [ECHO_MODEL, { ...ECHO_MODEL, id: 'qwen3-8b' }])
  expect(loadModels(path, ['echo-1']).served.models.map(({ id }) => id)).toEqual(['echo-1'])
  expect(() => loadModels(path, ['qwen3'])).toThrow(ConfigError)
  expect(() => loadModels(path, ['qwen3'])).toThrow(
    /MODELS: there is no model 'qwen3' in .*Similar models: qwen3-8b, echo-1/,
  )
})

test('a models.yaml that is a device, a directory or above 4 MiB is refused before it is read', async () => {
  expect(() => loadModels('/dev/zero')).toThrow(/\/dev\/zero: expected a regular file/)
  expect(() => loadModels(dir)).toThrow(/expected a regular file/)
  const path = join(dir, 'models.yaml')
  await writeFile(path, '#'.repeat(4 * 1024 * 1024 + 1))
  expect(() => loadModels(path)).toThrow(/expected at most 4194304 bytes, got 4194305/)
})
