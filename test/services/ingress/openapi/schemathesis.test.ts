/*
 * Test with Schemathesis, a tool that generates valid and invalid requests from an OpenAPI document. Each response must have a documented
 * status, content type and schema, and no response may be a server error.
 */

import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { keyOf } from '#shared/keys/keys.ts'
import { findPythonEnv } from '../../../support/processes/python.ts'
import { startStack } from '../../../support/stack.ts'

const PINS = ['schemathesis==4.32.5']
const SECRET = 'sk-schemathesis-0123456789'
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
]
/**
 * Number of requests that Schemathesis generates per operation. The fixed seed makes runs reproducible. The environment variables permit
 * longer runs by hand.
 */
const EXAMPLES = process.env.SCHEMATHESIS_EXAMPLES ?? '3'
const SEED = process.env.SCHEMATHESIS_SEED ?? '1'
const PHASES = process.env.SCHEMATHESIS_PHASES ?? 'fuzzing'
const RUN_MS = 240_000

const run = promisify(execFile)
const bin = await findPythonEnv('schemathesis', PINS)

/** The parts of an OpenAPI document that `withExisting` changes. */
interface Document {
  paths: Record<string, Record<string, { parameters?: { name: string; in: string; schema: object }[] }>>
  components: { schemas: Record<string, { properties?: Record<string, object> }> }
}

/**
 * Restricts the names of models and the ids of jobs in the document to existing ones. Otherwise nearly every generated request would return
 * 404.
 */
function withExisting(document: Document, jobId: string): Document {
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

describe.skipIf(!bin)('the OpenAPI document in a run of Schemathesis', { timeout: RUN_MS }, () => {
  it('describes every response to the generated requests', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-schemathesis-'))
    const key = keyOf(SECRET, { id: 'key_schemathesis', scopes: ['calls', 'admin'] })
    await writeFile(join(directory, 'keys.json'), JSON.stringify({ keys: [key] }))
    await using stack = await startStack({ dataDir: directory })
    const headers = { authorization: `Bearer ${SECRET}` }
    const call = { model: 'echo-1', messages: [{ role: 'user', content: 'One two three.' }] }
    const job = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body: call }, { headers })
    const { id } = (await job.json()) as { id: string }
    const document = join(directory, 'openapi.json')
    const described = (await (await stack.get('/openapi.json')).json()) as Document
    await writeFile(document, JSON.stringify(withExisting(described, id)))

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
      // Excluded are code runs, which return 503 without a sandbox, and pauses and drains, after which other calls return 503 or 529. The check
      // `not_a_server_error` would report these statuses.
      ...['--exclude-path-regex', '^/v1/tools/code$|/(pause|drain)$', '--request-timeout', '60'],
    ]
    const schemathesis = join(bin ?? '', 'schemathesis')
    // Schemathesis exits with code 1 if a check fails.
    const { stdout, code } = await run(schemathesis, args, { cwd: directory, timeout: RUN_MS }).then(
      (done) => ({ ...done, code: 0 }),
      (failed: { stdout: string; code: unknown }) => failed,
    )
    await rm(directory, { recursive: true, force: true })
    expect(code === 0 ? '' : stdout).toBe('')
    expect(Number(/(\d+) generated/.exec(stdout)?.[1])).toBeGreaterThan(100)
  })
})
