import { existsSync, writeFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse, stringify } from 'yaml'
import { z } from 'zod'
import { ChatRequest } from '#schemas/chat.ts'
import { SubmitJob } from '#schemas/jobs.ts'
import { loadModels } from '#shared/models/models.ts'
import { type Block, blocksOf, PAGES } from '../support/docs/blocks.ts'

/*
 * Checks the JSON and YAML blocks of README.md and docs/. Blocks with commands and programs are run by commands.test.ts, those of client programs
 * by test/clients.
 */

const BLOCKS = PAGES.flatMap(blocksOf)
const DATA = ['json', 'yaml']
const PROGRAMS = ['sh', 'js', 'ts', 'python']
/** Minimum length of the reason in a comment `not run: REASON`, so that the reason is more than a word. */
const REASON_LENGTH_MIN = 20

const ofLanguage = (language: string) =>
  BLOCKS.filter((block) => block.language === language && block.notRun === undefined)

describe('code blocks of the documentation', () => {
  it('have a language that a test checks, or no language if the block is a diagram or output', () => {
    const known = ['', ...DATA, ...PROGRAMS]
    expect(BLOCKS.filter(({ language }) => !known.includes(language)).map(({ place }) => place)).toEqual([])
    expect(BLOCKS.length).toBeGreaterThan(90)
  })

  it('state a reason if no test runs the block', () => {
    const marked = BLOCKS.filter(({ notRun }) => notRun !== undefined)
    expect(marked.filter(({ notRun = '' }) => notRun.length < REASON_LENGTH_MIN).map(({ place }) => place)).toEqual([])
    expect(marked.filter(({ language }) => !PROGRAMS.includes(language)).map(({ place }) => place)).toEqual([])
    expect(marked.length).toBeLessThan(28)
  })

  it('call sluice through npx, because no page adds sluice to the PATH', () => {
    const bare = /(?:^|[|;&(])[ \t]*sluice [a-z]/m
    const pages = BLOCKS.filter(({ page }) => page !== 'docs/reference/cli.md')
    expect(
      pages.filter(({ language, code }) => language === 'sh' && bare.test(code)).map(({ place }) => place),
    ).toEqual([])
    expect(pages.filter(({ code }) => code.includes('npx sluice ')).length).toBeGreaterThan(5)
  })

  it('are equal to the programs of examples/ that they show', async () => {
    const shown = BLOCKS.filter(({ file }) => file !== undefined && existsSync(join('examples', file)))
    expect(shown.map(({ file }) => file).sort()).toEqual(['job.py', 'job.ts'])
    for (const { file = '', code } of shown) expect(`${code}\n`).toBe(await readFile(join('examples', file), 'utf8'))
  })

  it('have labels of API clients, such as openai-python, only in docs/get-started/clients.md', () => {
    expect(BLOCKS.filter(({ name }) => name !== '').every(({ page }) => page === 'docs/get-started/clients.md')).toBe(
      true,
    )
  })
})

describe('JSON blocks of the documentation', () => {
  it.each(ofLanguage('json'))('contain valid JSON and a valid request body: $place', ({ code }) => {
    for (const value of valuesOf(code)) {
      const { endpoint, url, body } = value as { endpoint?: string; url?: string; body?: unknown }
      if (body === undefined) continue
      if (endpoint) expect(SubmitJob.safeParse(value).error).toBe(undefined)
      if (url) expect(BatchLine.safeParse(value).error).toBe(undefined)
      if ((endpoint ?? url) === '/v1/chat/completions') expect(ChatRequest.safeParse(body).error).toBe(undefined)
    }
  })

  const BatchLine = z.strictObject({
    custom_id: z.string().min(1),
    method: z.literal('POST'),
    url: z.string().startsWith('/v1/'),
    body: z.looseObject({ model: z.string() }),
  })

  /** Parses the code as one JSON value, or else as one JSON value per line. */
  function valuesOf(code: string): unknown[] {
    try {
      return [JSON.parse(code)]
    } catch {
      return code.split('\n').map((line) => JSON.parse(line))
    }
  }
})

describe('YAML blocks of the documentation', () => {
  it.each(ofLanguage('yaml'))('load as a model catalogue or as a part of one: $place', async ({ code }) => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-docs-'))
    onTestFinished(() => rm(directory, { recursive: true }))
    const path = join(directory, 'models.yaml')
    // Examples may name fallback models that exist only in the repository's models.yaml. The models of that file are added, so that the example
    // is valid.
    const ours = parse(await readFile('models.yaml', 'utf8')).models as { id: string }[]
    const { models, ...rest } = parse(wholeOf(code)) as { models: { id: string }[] }
    const ids = models.map(({ id }) => id)
    writeFileSync(path, stringify({ ...rest, models: [...models, ...ours.filter(({ id }) => !ids.includes(id))] }))
    const catalogue = loadModels(path)
    for (const id of ids) expect(catalogue.find(id)?.id).toBe(id)
  })

  function wholeOf(code: Block['code']): string {
    if (code.startsWith('  - ')) return `models:\n${code}`
    return code.startsWith('    ') ? `models:\n  - id: part\n${code}` : code
  }
})
