import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { keyOf } from '#shared/keys/keys.ts'
import { findPythonEnv } from '../../../support/processes/python.ts'
import { startStack } from '../../../support/stack.ts'

/*
 * Schemathesis makes requests of the description of the API, valid ones and broken ones, and looks at each answer: no failure of
 * ours, no status and no type that is not described, no body that breaks its schema.
 */

const PINS = ['schemathesis==4.32.5']
const SECRET = 'sk-schemathesis-0123456789'
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
]
/** Requests of each operation; what differs from run to run is left to people, who may give another seed and more of them. */
const EXAMPLES = process.env.SCHEMATHESIS_EXAMPLES ?? '3'
const SEED = process.env.SCHEMATHESIS_SEED ?? '1'
const PHASES = process.env.SCHEMATHESIS_PHASES ?? 'fuzzing'
const RUN_MS = 240_000

const run = promisify(execFile)
const bin = await findPythonEnv('schemathesis', PINS)

/** What a document says of a body or a parameter, as far as it is made narrower here. */
interface Known {
  paths: Record<string, Record<string, { parameters?: { name: string; in: string; schema: object }[] }>>
  components: { schemas: Record<string, { properties?: Record<string, object> }> }
}

/** The same, where models and jobs are ones that there are: nearly every other request would be a 404. */
function withKnown(document: Known, jobId: string): Known {
  for (const { properties } of Object.values(document.components.schemas)) {
    if (properties && 'model' in properties && 'messages' in properties) properties.model = { const: 'echo-1' }
  }
  for (const [path, operations] of Object.entries(document.paths)) {
    if (!/^\/v1\/(admin\/)?jobs\/\{id\}/.test(path)) continue
    for (const { parameters } of Object.values(operations)) {
      const id = parameters?.find((parameter) => parameter.in === 'path')
      if (id) id.schema = { anyOf: [{ const: jobId }, { type: 'string', minLength: 1 }] }
    }
  }
  return document
}

describe.skipIf(!bin)('the description of the API, by Schemathesis', { timeout: RUN_MS }, () => {
  it('holds for every answer to requests that are made of it', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-schemathesis-'))
    const key = keyOf(SECRET, { id: 'key_schemathesis', scopes: ['calls', 'admin'] })
    await writeFile(join(directory, 'keys.json'), JSON.stringify({ keys: [key] }))
    await using stack = await startStack({ dataDir: directory })
    const headers = { authorization: `Bearer ${SECRET}` }
    const call = { model: 'echo-1', messages: [{ role: 'user', content: 'One two three.' }] }
    const job = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body: call }, { headers })
    const { id } = (await job.json()) as { id: string }
    const document = join(directory, 'openapi.json')
    const described = (await (await stack.get('/openapi.json')).json()) as Known
    await writeFile(document, JSON.stringify(withKnown(described, id)))

    const args = [
      ...['run', document, '--url', stack.url, '-H', `authorization: Bearer ${SECRET}`, '--checks', CHECKS.join(',')],
      ...[
        '--phases',
        PHASES,
        '-n',
        EXAMPLES,
        '--seed',
        SEED,
        '--no-shrink',
        '--continue-on-failure',
        '--warnings',
        'off',
      ],
      // Without a sandbox code is refused with 503, and what it would pause, which it finds by the lists, with 529: both are described,
      // and failures of ours all the same.
      ...['--exclude-path-regex', '^/v1/tools/code$|/(pause|drain)$', '--request-timeout', '60'],
    ]
    const schemathesis = join(bin ?? '', 'schemathesis')
    // It exits with 1 for what it finds.
    const { stdout, code } = await run(schemathesis, args, { cwd: directory, timeout: RUN_MS }).then(
      (done) => ({ ...done, code: 0 }),
      (failed: { stdout: string; code: unknown }) => failed,
    )
    await rm(directory, { recursive: true, force: true })
    expect(code === 0 ? '' : stdout).toBe('')
    expect(Number(/(\d+) generated/.exec(stdout)?.[1])).toBeGreaterThan(100)
  })
})
