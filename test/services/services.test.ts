import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { PoolName } from '#schemas/job.ts'
import { ROLES } from '#services/services.ts'

describe('the list of roles', () => {
  it('contains only roles that docker-compose.yml starts', async () => {
    const fleet = parse(await readFile('docker-compose.yml', 'utf8')) as { services: Record<string, unknown> }
    const commands = Object.values(fleet.services).flatMap((service) => (service as { command?: string[] }).command)
    expect(commands).toEqual(expect.arrayContaining(ROLES))
  })

  it('is printed by --help in 80 columns', async () => {
    const { stdout } = await promisify(execFile)(process.execPath, ['services/main.js', '--help'])
    for (const role of ROLES) expect(stdout).toMatch(new RegExp(`^  ${role} `, 'm'))
    expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([])
  })
})

it('.env.example lists the slots setting of each pool', async () => {
  const listed = await readFile('.env.example', 'utf8')
  for (const pool of PoolName.options) expect(listed).toContain(`${pool.toUpperCase()}_SLOTS=`)
})
