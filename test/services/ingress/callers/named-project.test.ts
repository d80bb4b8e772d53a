/* Tests of requests and commands in which an operator identifies a project by its id or by its name. */

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import { hashOf } from '#shared/keys/keys.ts'
import { startStack, until } from '../../../support/stack.ts'

const keyOf = (id: string, more: object = {}) => ({
  ...{ id, hash: hashOf(`sk-${id}`), hint: 'sk-...', created_at: 1_790_000_000, revoked: false },
  ...more,
})
const projectOf = (id: string, name: string) => ({ id, name, created_at: 1_790_000_000, limits: {} })

it('a project is found by its id or name, and an unknown or ambiguous name is refused with suggestions', () => {
  const keys = [keyOf('key_1', { name: 'laptop' }), keyOf('key_2', { project: 'made-by-hand' }), keyOf('key_3')]
  const projects = [
    projectOf('proj_1', 'Büro 🚀'),
    projectOf('proj_2', 'twin'),
    projectOf('proj_3', 'twin'),
    projectOf('proj_4', 'proj_1'),
  ]
  const find = (text: string) => projectIdNamed({ keys, projects }, text)
  expect(['proj_2', 'Büro 🚀', 'laptop', 'key_3', 'made-by-hand', 'proj_1', 'proj_of_old'].map(find)).toEqual([
    ...['proj_2', 'proj_1', 'key_1', 'key_3', 'made-by-hand', 'proj_1', 'proj_of_old'],
  ])
  expect(() => find('twin')).toThrow("2 projects have the name 'twin': proj_2, proj_3. Use the id of one.")
  expect(() => find('lapto')).toThrow("No project 'lapto' exists. Known projects: laptop (key_1), ")
})

it('usage reports, lists and bulk cancels accept a project name instead of the project id', async () => {
  await using stack = await startStack()
  const keys = [keyOf('a', { project: 'proj_1' }), keyOf('root', { scopes: ['admin'] })]
  const text = JSON.stringify({ keys, projects: [projectOf('proj_1', 'Büro 🚀')] })
  writeFileSync(join(stack.dataDir, 'keys.json'), text)
  const root = { headers: { authorization: 'Bearer sk-root' } }
  const own = { headers: { authorization: 'Bearer sk-a' } }
  await until(async () => (await stack.get('/v1/usage', root)).status === 200)
  const read = async (path: string, project: string, init = root) =>
    await stack.get(`${path}?project=${encodeURIComponent(project)}`, init)
  for (const path of ['/v1/usage', '/v1/admin/jobs', '/v1/admin/deliveries']) {
    expect((await read(path, 'Büro 🚀')).status).toBe(200)
    const none = await read(path, 'nobody')
    expect([none.status, await none.json()]).toMatchObject([
      400,
      { error: { param: 'project', message: expect.stringContaining('Büro 🚀 (proj_1)') } },
    ])
  }
  const usage = (await (await read('/v1/usage', 'Büro 🚀', own)).json()) as { project: string }
  expect(usage.project).toBe('proj_1')
  expect((await read('/v1/usage', 'nobody', own)).status).toBe(403)
  const cancelled = await stack.post('/v1/admin/jobs/cancel', { project: 'nobody' }, root)
  expect(cancelled.status).toBe(400)
})
