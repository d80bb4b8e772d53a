import { execFileSync } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { blocksOf, PAGES } from '../support/docs/blocks.ts'
import { runPage, type World } from '../support/docs/page.ts'
import { freePort } from '../support/processes/free-ports.ts'
import { findPythonEnv } from '../support/processes/python.ts'
import { startUpstream } from '../support/processes/upstream.ts'
import { pinsOf } from '../support/python-cases.ts'
import { SANDBOX_DIR, SANDBOX_MISSING, testZygote } from '../support/sandbox/sandbox.ts'
import { findEnvironment, MODELS_DIR } from '../support/speech/running.ts'
import { findSpeech } from '../support/speech/speech.ts'
import { join as joined, samplesOf, silence, waveOf } from '../support/speech/wave.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../support/stack.ts'

/*
 * Runs the commands and programs of README.md and docs/ unchanged. The service has the models of models.yaml, the sandbox, and research over the
 * documentation. Transcription and embeddings use real models. The chat model is replaced by a scripted one, for speed. The text-to-speech server
 * is part of the test.
 */

const PROGRAMS = ['sh', 'js', 'ts', 'python']
const SERVICE_MS = 300_000

const bin = await findPythonEnv('sdk-new', pinsOf('new'))
const clips = (await findEnvironment()) && (await findSpeech())
const missing = [
  bin ? [] : ['the packages of the Python SDKs'],
  clips ? [] : ['the local model server, or recorded speech'],
  SANDBOX_MISSING === undefined ? [] : [SANDBOX_MISSING],
  ['bash', 'curl', 'jq'].filter((command) => !isHere(command)),
].flat()
if (missing.length > 0) {
  const reason = `The commands of the documents need ${missing.join(', ')}.`
  if (process.env.CI === 'true') throw new Error(reason)
  process.stderr.write(`skipped: ${reason}\n`)
}

describe.skipIf(missing.length > 0)('commands in the documentation', () => {
  const cleanups: (() => PromiseLike<unknown>)[] = []
  let stack: Stack
  let world: World

  beforeAll(async () => {
    const dataDir = await mkdtemp(join(tmpdir(), 'sluice-docs-'))
    cleanups.push(() => rm(dataDir, { recursive: true, force: true }))
    // The models and the sandbox are linked from a cache of this machine, because their preparation takes long.
    await symlink(MODELS_DIR, join(dataDir, 'models'))
    await symlink(SANDBOX_DIR, join(dataDir, basename(SANDBOX_DIR)))
    const speaker = await startUpstream(async (_, answer) => {
      answer.open('audio/mpeg')
      await answer.bytes(waveOf(silence(1)))
      answer.end()
    })
    cleanups.push(() => speaker[Symbol.asyncDispose]())
    const { models } = parse(await readFile('models.yaml', 'utf8')) as { models: { id: string }[] }
    const kokoro = { id: 'kokoro', task: 'speech', engine: { type: 'openai', base_url: `${speaker.url}/v1` } }
    stack = await startStack({
      dataDir,
      models: [
        ...models.map((model) => (model.id.startsWith('smollm2') ? { ...ECHO_MODEL, id: model.id } : model)),
        kokoro,
      ],
      settings: { WEBHOOK_ALLOW_PRIVATE: 'true' },
      sandboxes: [{ name: 'zygote', load: () => testZygote() }],
    })
    cleanups.push(() => stack[Symbol.asyncDispose]())
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] }
    const init = { headers: { prefer: 'respond-async' } }
    const { id } = (await (await stack.post('/v1/chat/completions', body, init)).json()) as { id: string }
    await stack.get(`/v1/jobs/${id}?wait=60`)
    world = {
      url: stack.url,
      dataDir,
      port: await freePort(),
      bin: String(bin),
      files: await filesIn(dataDir),
      jobId: id,
    }
    await until(async () => (await stack.get('/readyz')).ok, { withinMs: SERVICE_MS })
  }, SERVICE_MS)
  afterAll(async () => {
    for (const cleanup of cleanups.reverse()) await cleanup()
  })

  it.each(PAGES)('succeed as written on the page %s', { timeout: SERVICE_MS }, async (page) => {
    const blocks = blocksOf(page).filter(
      ({ language, name, notRun }) => PROGRAMS.includes(language) && name === '' && notRun === undefined,
    )
    if (blocks.length > 0) expect(await runPage(blocks, world)).toEqual({ failed: undefined, output: '' })
  })

  /** Creates the files that commands of the pages use: recordings and request bodies. */
  async function filesIn(dataDir: string): Promise<string> {
    const directory = join(dataDir, 'files')
    await mkdir(directory)
    const clip = (name: string) => clips?.[name] ?? Object.values(clips ?? {})[0]
    await copyFile(clip('austen-0880')?.file ?? '', join(directory, 'speech.wav'))
    await copyFile(clip('austen-0930')?.file ?? '', join(directory, 'meeting.mp3'))
    await copyFile(clip('austen-0870')?.file ?? '', join(directory, 'agent.wav'))
    const call = ['austen-0870', 'austen-0930'].map((name) => samplesOf(clip(name)?.bytes ?? Buffer.alloc(0)))
    await writeFile(join(directory, 'call.wav'), waveOf(joined([...call.slice(0, 1), silence(1), ...call.slice(1)])))
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'Hello' }] }
    await writeFile(join(directory, 'request.json'), JSON.stringify(body))
    const line = { custom_id: 'row-1', method: 'POST', url: '/v1/chat/completions', body }
    await writeFile(join(directory, 'requests.jsonl'), JSON.stringify(line))
    return directory
  }
})

function isHere(command: string): boolean {
  try {
    execFileSync('sh', ['-c', `command -v ${command}`])
    return true
  } catch {
    return false
  }
}
