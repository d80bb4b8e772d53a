import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '..')
const BIOME = join(ROOT, 'node_modules/.bin/biome')
const RUN_MS = 50_000

const ADAPTER = 'Adapters are imported by shared/ports.ts only.'
const CLIENT = 'Only the adapter of a client library imports it.'
const OTHER = 'A service imports no other service: only services/services.ts imports all services.'
const ROOTED = 'Import from the root of the project: #shared/… or #services/…'
const SCHEMAS = 'Schemas import nothing but schemas.'

/**
 * Examples of imports to check the rules of laws.grit: a file, the module that it imports, and the rule that must forbid the import. Without a
 * rule, the import must be allowed.
 */
const IMPORTS: readonly (readonly [from: string, to: string, law?: string])[] = [
  ['schemas/job.ts', '#shared/lib/id.ts', SCHEMAS],
  ['schemas/job.ts', '../shared/lib/id.ts', SCHEMAS],
  ['schemas/job.ts', './error.ts'],
  ['schemas/job.ts', 'zod'],
  ['shared/lib/id.ts', '#services/main.js', 'Files in shared/ import no service.'],
  ['shared/jobs/body.ts', '../id.ts', ROOTED],
  ['services/ingress/app.ts', '#services/scheduler/scheduler.ts', OTHER],
  ['services/cli/commands/doctor.ts', '#services/services.ts', OTHER],
  ['services/ingress/ws/ws.ts', '#services/ingress/calls/call.ts'],
  ['services/scheduler/scheduler.ts', '#shared/jobs/owner.ts', 'Only shared/jobs imports owner.ts.'],
  ['shared/jobs/worker/worker.ts', '#shared/jobs/owner.ts'],
  ['services/ingress/calls/answer.ts', 'express', CLIENT],
  ['services/ingress/http/reply.ts', 'express'],
  ['services/services.ts', './ingress/ingress.ts'],
  ['services/cli/cli.ts', '../../package.json'],
  ...[
    'broker/memory.ts',
    'broker/kafka/kafka.ts',
    'store/postgres/postgres.ts',
    'store/sqlite/sqlite.ts',
    'engines/openai/embeddings.ts',
    'engines/anthropic/anthropic.ts',
    'engines/llama/llama.ts',
    'engines/echo/echo.ts',
    'engines/local/local.ts',
    'sandbox/docker/docker.ts',
    'sandbox/zygote/zygote.ts',
    'sandbox/wasm/wasm.ts',
    'blobs/disk.ts',
    'keys/file.ts',
    'keys/postgres.ts',
    'content-filter/profanity.ts',
    'content-filter/word-list.ts',
    'local-server/local-server.ts',
    'search/local/local.ts',
    'search/web/web.ts',
  ].flatMap((adapter): [string, string, string?][] => [
    ['services/embeddings/embeddings.ts', `#shared/${adapter}`, ADAPTER],
    ['services/cli/doctor/kafka.ts', `#shared/${adapter}`, ADAPTER],
    ['bench/durable/library.ts', `#shared/${adapter}`, ADAPTER],
    ['shared/jobs/worker/worker.ts', `#shared/${adapter}`, ADAPTER],
    ['shared/lib/metrics.ts', `./${adapter}`, ADAPTER],
    ['shared/ports.ts', `./${adapter}`],
    ['shared/ports/inspect.ts', `#shared/${adapter}`],
  ]),
  ['shared/store/store.ts', './postgres/postgres.ts', 'A port imports none of its adapters.'],
  ['shared/store/postgres/postgres.ts', './connection.ts'],
  ['shared/keys/postgres.ts', '#shared/store/postgres/connection.ts'],
  ['shared/broker/kafka/share/groups.ts', 'kafkajs', CLIENT],
  ['shared/broker/kafka/classic/queue.ts', 'kafkajs'],
  ...[
    '@platformatic/kafka',
    'kafkajs',
    'pg',
    'node:sqlite',
    'dockerode',
    'node-llama-cpp',
    'gpt-tokenizer/encoding/o200k_base',
    'undici',
    'eventsource-parser',
    'cockatiel',
    'obscenity',
    'ws',
    '@fastify/busboy',
    'pino',
    'prom-client',
    '@modelcontextprotocol/client',
    'yaml',
    'bullmq',
    'pg-boss',
    'express',
  ].map((client): [string, string, string] => ['services/cli/doctor/machine.ts', client, CLIENT]),
]

/** Returns the imports that the examples list for `file` as lines of code. Each module is imported once statically and once dynamically. */
function linesOf(file: string): string[] {
  return IMPORTS.filter(([from]) => from === file).flatMap(([, to]) => [`import '${to}'`, `await import('${to}')`])
}

interface Diagnostic {
  readonly category: string
  readonly message: string
  readonly location: { readonly path: string; readonly start: { readonly line: number } }
}

describe('import rules between folders', () => {
  let directory: string
  const broken = new Map<string, string>()

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'sluice-laws-'))
    await copyFile(join(ROOT, 'test/laws.grit'), join(directory, 'laws.grit'))
    const config = { plugins: ['./laws.grit'], linter: { rules: { preset: 'none' } } }
    await writeFile(join(directory, 'biome.json'), JSON.stringify(config))
    for (const file of new Set(IMPORTS.map(([from]) => from))) {
      await mkdir(dirname(join(directory, file)), { recursive: true })
      await writeFile(join(directory, file), `${linesOf(file).join('\n')}\n`)
    }
    const args = ['lint', '--reporter=json', '--max-diagnostics=none', '.']
    const options = { cwd: directory, timeout: RUN_MS, maxBuffer: 16 * 1024 * 1024 }
    // If Biome reports anything, then its exit code is 1, so `execFile` rejects. The rejection contains the output.
    const { stdout } = await promisify(execFile)(BIOME, args, options).catch((error) => error)
    const { diagnostics } = JSON.parse(stdout) as { diagnostics: Diagnostic[] }
    for (const { message, location } of diagnostics) broken.set(`${location.path}:${location.start.line}`, message)
  }, RUN_MS)
  afterAll(() => rm(directory, { recursive: true, force: true }))

  it.each(IMPORTS)('find the forbidden import in %s of %s (violated rule: %s)', (from = '', to = '', law) => {
    const line = linesOf(from).indexOf(`import '${to}'`) + 1
    expect(broken.get(`${from}:${line}`)).toBe(law)
    expect(broken.get(`${from}:${line + 1}`)).toBe(law)
  })
})
