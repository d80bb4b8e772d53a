/* Tests of the forms of the console playground in Chromium, with real local models and the real sandbox. */

import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { keyOf } from '#shared/keys/keys.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { findPythonEnv } from '../../support/processes/python.ts'
import { startUpstream } from '../../support/processes/upstream.ts'
import { pinsOf } from '../../support/python-cases.ts'
import { SANDBOX_MISSING, testZygote } from '../../support/sandbox/sandbox.ts'
import { findEnvironment, MODELS_DIR } from '../../support/speech/running.ts'
import { findSpeech } from '../../support/speech/speech.ts'
import { RATE, waveOf } from '../../support/speech/wave.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../support/stack.ts'

/** API key with permission for the model echo-1 only. */
const LIMITED_KEY = 'sk-limited-0123456789'
const run = promisify(execFile)
const HERONS = `# Herons

Herons build their nests in tall trees near water, often many in one colony.

They eat fish and frogs, which they catch by standing still in shallow water.
`
/** Audio samples of one second of a tone. */
const TONE = Int16Array.from({ length: RATE }, (_, nth) => 8_000 * Math.sin(nth / 10))
const local = (model: string) => ({ engine: { type: 'local', model }, id: model })
const MODELS = [
  ECHO_MODEL,
  { ...ECHO_MODEL, id: 'echo-2' },
  { ...local('whisper-tiny.en'), pool: 'transcription', transcription: { languages: ['en'] } },
  { ...local('all-minilm-l6-v2'), pool: 'embeddings', embeddings: { dimensions: 384 } },
  { id: 'deep-research', pool: 'research', engine: { type: 'research' } },
]

/** Python environment with the OpenAI and Anthropic SDKs, which runs the example code of the console. */
const packages = CHROMIUM ? await findPythonEnv('sdk-new', pinsOf('new')) : undefined
const environment = CHROMIUM ? await findEnvironment() : undefined
const speech = environment ? await findSpeech() : undefined

describe.skipIf(!CHROMIUM)('the playground of the console', { timeout: 6 * PAGE_MS }, () => {
  let stack: Stack
  let browser: Browser
  let dataDir: string
  let speaker: Awaited<ReturnType<typeof startUpstream>>
  const faults: string[] = []

  beforeAll(async () => {
    dataDir = await mkdtemp(join(tmpdir(), 'sluice-playground-'))
    // All test runs share the downloaded model files, so the data directory has a link to them.
    await symlink(MODELS_DIR, join(dataDir, 'models'))
    const corpus = join(dataDir, 'corpus')
    await mkdir(corpus)
    await writeFile(join(corpus, 'herons.md'), HERONS)
    const limited = keyOf(LIMITED_KEY, { id: 'limited', project: 'limited', models: ['echo-1'] })
    await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: [limited] }))
    const sandboxes = SANDBOX_MISSING ? [] : [{ name: 'zygote' as const, load: () => testZygote() }]
    speaker = await startUpstream(async (_, answer) => {
      answer.open('audio/wav')
      await answer.bytes(waveOf(TONE))
      answer.end()
    })
    const voice = { id: 'kokoro', task: 'speech', engine: { type: 'openai', base_url: `${speaker.url}/v1` } }
    const settings = { DATA_DIR: dataDir, RESEARCH_CORPUS: corpus, EXTENSIONS: 'examples/custom-kind/shout.ts' }
    stack = await startStack({
      models: [...(environment ? MODELS : [...MODELS.slice(0, 2), ...MODELS.slice(4)]), voice],
      sandboxes,
      settings,
    })
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await stack?.[Symbol.asyncDispose]()
    await speaker?.[Symbol.asyncDispose]()
    await rm(dataDir, { recursive: true, force: true })
  })

  async function openForm(name: string, options: object = {}): Promise<Page> {
    const page = await signIn(browser, stack.url, TEST_KEY, faults, options)
    await page.goto(`${stack.url}/console/playground`)
    await page.getByRole('link', { name, exact: true }).click()
    await page.getByRole('complementary', { name: 'Options' }).waitFor()
    return page
  }

  /** Checks the page for accessibility violations and horizontal overflow, first light and wide, then dark and narrow. */
  async function look(page: Page, name: string): Promise<void> {
    expect(await faultsOf(page, name)).toEqual([])
    await page.emulateMedia({ colorScheme: 'dark' })
    await page.setViewportSize({ width: 360, height: 740 })
    expect(await faultsOf(page, `${name}-narrow-dark`)).toEqual([])
    await page.context().close()
  }

  async function codeIn(page: Page, language: string): Promise<string> {
    await page.getByRole('group', { name: 'Language' }).getByRole('button', { name: language }).click()
    return (await page.locator('.code pre').textContent()) ?? ''
  }

  /** Runs the example code that the console shows for a form, and returns its standard output. */
  async function reproduced(command: string, args: readonly string[]): Promise<string> {
    const env = { ...process.env, SLUICE_API_KEY: TEST_KEY }
    return (await run(command, args, { env, timeout: PAGE_MS })).stdout
  }

  it('compares the replies of two models, and shows working example code', async () => {
    const page = await openForm('Chat')
    await page.getByLabel('Compare with another').check()
    await page.getByLabel('Second model').selectOption('echo-2')
    await page.getByLabel('Message').fill('!echo text="It\'s both."')
    await page.getByRole('button', { name: 'Send' }).click()
    for (const model of ['echo-1', 'echo-2']) {
      const side = page.getByRole('log', { name: `Conversation with ${model}` })
      await side.getByText("It's both.", { exact: true }).waitFor()
      await side.getByText(/^\d+ tokens in .* first token after [\d.]+ m?s/).waitFor()
    }
    await page.getByRole('group', { name: 'Call' }).getByRole('button', { name: 'echo-2' }).click()
    const curl = await codeIn(page, 'curl')
    expect(curl).toContain('"model": "echo-2"')
    expect((await reproduced('bash', ['-c', `${curl} -s`])).replaceAll('\\"', '"')).toContain('"content":"It')
    const typescript = ['--input-type=module-typescript', '--eval', await codeIn(page, 'TypeScript')]
    expect(await reproduced(process.execPath, typescript)).toBe("It's both.")
    const python = await codeIn(page, 'Python')
    if (packages) expect(await reproduced(join(packages, 'python'), ['-c', python])).toBe("It's both.")
    await look(page, 'playground-chat')
  })

  it('stops a reply, which cancels the job', async () => {
    const page = await openForm('Chat')
    await page.getByLabel('Message').fill('!echo tokens=5000 delay_ms=50')
    await page.keyboard.press('Enter')
    await page.locator('.turn.assistant .words').getByText(/\w/).waitFor()
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByText('stopped', { exact: true }).waitFor()
    await expect
      .poll(async () => /^sluice_jobs_running\{[^}]*\} [1-9]/m.test(await (await stack.get('/metrics')).text()), {
        timeout: PAGE_MS,
      })
      .toBe(false)
    await page.context().close()
  })

  it('shows an error message with its remedy', async () => {
    const page = await openForm('Chat')
    await page.getByLabel('Temperature').fill('7')
    await page.getByLabel('Message').fill('Hello')
    await page.keyboard.press('Enter')
    await page
      .getByRole('alert')
      .getByText(/temperature.*Fix the request and try again\./)
      .waitFor()
    await page.context().close()
  })

  it.each([
    ['Responses', 'responses', 'Max output tokens'],
    ['Messages', 'messages', 'Max tokens'],
  ])('sends requests in the format of the %s API, and shows working example code', async (name, path, bound) => {
    const page = await openForm(name)
    await page.getByLabel('Input').fill('!echo text="By the water."')
    await page.getByLabel(bound).fill('64')
    await page.getByRole('button', { name: 'Send' }).click()
    await page.getByText('By the water.', { exact: true }).waitFor()
    await page.getByText(/^\d+ tokens in .* first token after/).waitFor()
    const curl = await codeIn(page, 'curl')
    expect(curl).toContain(`/v1/${path}`)
    expect(await reproduced('bash', ['-c', `${curl} -s`])).toContain('water')
    const typescript = ['--input-type=module-typescript', '--eval', await codeIn(page, 'TypeScript')]
    expect(await reproduced(process.execPath, typescript)).toBe('By the water.')
    const python = await codeIn(page, 'Python')
    expect(python).toContain(`client.${path}.create(`)
    if (packages) expect(await reproduced(join(packages, 'python'), ['-c', python])).toBe('By the water.')
    await look(page, `playground-${path}`)
  })

  it.each([
    ['Responses', ''],
    ['Responses', 'true'],
    ['Messages', ''],
  ])('shows why a stream of the %s API failed, with "%s" selected for the option store', async (name, store) => {
    const page = await openForm(name)
    await page.getByLabel('Input').fill('!echo after=2 tokens=5 fail=upstream_error')
    if (store) {
      const more = page.getByText('More options')
      if (await more.count()) await more.click()
      await page.getByLabel('Store').selectOption(store)
    }
    await page.getByRole('button', { name: 'Send' }).click()
    await page.getByRole('alert').getByText('Choose another model').waitFor()
    expect(await page.getByText(/first token after/).count()).toBe(0)
    await page.context().close()
  })

  it('shows the forms without a reload after the service has returned 503', async () => {
    const page = await signIn(browser, stack.url, TEST_KEY, [])
    await page.route('**/openapi.json', (route) => route.fulfill({ status: 503, body: '' }))
    await page.goto(`${stack.url}/console/playground`)
    await page.getByRole('alert').getByText('The service returned HTTP 503.').waitFor()
    await page.unroute('**/openapi.json')
    await page.getByRole('complementary', { name: 'Options' }).waitFor()
    await page.getByRole('alert').waitFor({ state: 'detached' })
    await page.context().close()
  })

  it('shows the text of a refusal', async () => {
    const page = await openForm('Responses')
    await page.getByLabel('Input').fill('!echo refusal="I would rather not."')
    await page.getByRole('button', { name: 'Send' }).click()
    await page.getByText('I would rather not.', { exact: true }).waitFor()
    await page.context().close()
  })

  it('shows the generated continuation of a prompt', async () => {
    const page = await openForm('Completions')
    await page.getByLabel('Prompt', { exact: true }).fill('!echo text=" there was a heron."')
    await page.getByRole('button', { name: 'Complete' }).click()
    await page.getByText('there was a heron.', { exact: false }).last().waitFor()
    await page.getByText(/^\d+ tokens in/).waitFor()
    await look(page, 'playground-completions')
  })

  it.skipIf(SANDBOX_MISSING)('runs Python code and shows its output and figures', async () => {
    const page = await openForm('Python')
    await page.getByRole('button', { name: 'Run' }).click()
    await page.getByRole('img', { name: 'Figure 1 from the code' }).waitFor()
    await page.getByText('200 points, the largest').waitFor()
    await page.getByText('Exit code 0 after').waitFor()
    const drawn = 'document.querySelector(".outcome img").naturalWidth'
    expect(await page.evaluate(drawn)).toBeGreaterThan(100)
    expect(await reproduced('bash', ['-c', `${await codeIn(page, 'curl')} -s`])).toContain('200 points')
    await look(page, 'playground-python')
  })

  it('runs a research and shows the quote of each citation', async () => {
    const page = await openForm('Research')
    await page.getByLabel('Question').fill('Where do herons build their nests, and what do they eat?')
    await page.getByRole('button', { name: 'Research' }).click()
    await page.getByText(/Searches: .* stop reason: answered in/).waitFor()
    const quotes = page.getByRole('region', { name: 'Citations' }).getByRole('listitem')
    expect(await quotes.count()).toBeGreaterThan(0)
    const quote = await quotes.first().locator('blockquote').textContent()
    expect(HERONS).toContain(quote)
    await page.getByRole('button', { name: 'Citation [1]' }).first().click()
    await page.locator('#quote-0.chosen').waitFor()
    await look(page, 'playground-research')
  })

  it('moderates texts if the service has the moderations endpoint', async () => {
    const reference = (await (await stack.get('/openapi.json')).json()) as { paths: Record<string, unknown> }
    if (!reference.paths['/v1/moderations']) {
      const page = await openForm('Chat')
      expect(await page.getByRole('link', { name: 'Moderations' }).count()).toBe(0)
      return await page.context().close()
    }
    const page = await openForm('Moderations')
    await page.getByRole('button', { name: 'Check' }).click()
    const results = page.getByRole('list', { name: 'Results' }).getByRole('listitem')
    await results.nth(1).getByText('flagged', { exact: true }).waitFor()
    await results.nth(0).getByText('not flagged').waitFor()
    await look(page, 'playground-moderations')
  })

  it.skipIf(!environment)('shows the similarity of each pair of texts', async () => {
    const page = await openForm('Embeddings')
    await page.getByRole('button', { name: 'Compare' }).click()
    await page.getByText('Most similar: 3 and 4').waitFor()
    expect(await page.locator('.heat .cell').count()).toBe(16)
    await look(page, 'playground-embeddings')
  })

  it.skipIf(!environment)('ranks documents by a query', async () => {
    const page = await openForm('Rerank')
    await page.getByRole('button', { name: 'Rank' }).click()
    const first = page.getByRole('list', { name: 'Most relevant first' }).getByRole('listitem').first()
    await first.getByText('Refunds take five days.').waitFor()
    await look(page, 'playground-rerank')
  })

  it.skipIf(!speech)(
    'transcribes a dropped file, plays the audio from a selected word, and downloads subtitles',
    async () => {
      const page = await openForm('Audio')
      const base64 = speech?.beckett?.bytes.toString('base64')
      await page.evaluate(`{
      const bytes = Uint8Array.from(atob('${base64}'), (one) => one.charCodeAt(0))
      const data = new DataTransfer()
      data.items.add(new File([bytes], 'beckett.wav', { type: 'audio/wav' }))
      document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))
    }`)
      await page.getByRole('region', { name: 'Waveform' }).waitFor()
      await page.getByRole('button', { name: 'Transcribe' }).click()
      const word = page
        .locator('.words')
        .getByRole('button', { name: /^failed/i })
        .first()
      await word.waitFor()
      await page.locator('.spoken .speaker').first().waitFor()
      await word.click()
      await page.getByRole('button', { name: 'Pause' }).waitFor()
      const [download] = await Promise.all([
        page.waitForEvent('download'),
        page.getByRole('button', { name: 'Download .srt' }).click(),
      ])
      expect(download.suggestedFilename()).toBe('beckett.srt')
      expect(await readFile(await download.path(), 'utf8')).toMatch(/^1\n00:00:0\d,\d{3} --> [\s\S]*[Ff]ail better/)
      await look(page, 'playground-audio')
    },
  )

  it('converts text to speech, plays the audio, and shows working example code', async () => {
    const page = await openForm('Speech')
    await page.getByLabel('Text').fill('Ever tried.')
    await page.getByLabel('Response format').selectOption('wav')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByRole('region', { name: 'Waveform' }).waitFor()
    await page.getByText(/^1\.0 s of audio in/).waitFor()
    await page.getByRole('button', { name: 'Play', exact: true }).click()
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: 'Download speech.wav' }).click(),
    ])
    expect((await readFile(await file.path())).subarray(0, 4).toString()).toBe('RIFF')
    for (const [language, command, args] of [
      ['curl', 'bash', ['-c']],
      ['TypeScript', process.execPath, ['--input-type=module-typescript', '--eval']],
    ] as const) {
      const code = (await codeIn(page, language)).replaceAll('speech.wav', join(dataDir, `${language}.wav`))
      await reproduced(command, [...args, code])
      expect((await readFile(join(dataDir, `${language}.wav`))).subarray(0, 4).toString()).toBe('RIFF')
    }
    const python = await codeIn(page, 'Python')
    expect(python).toContain('answer.write_to_file("speech.wav")')
    if (packages) {
      const into = join(dataDir, 'python.wav')
      await reproduced(join(packages, 'python'), ['-c', python.replace('speech.wav', into)])
      expect((await readFile(into)).subarray(0, 4).toString()).toBe('RIFF')
    }
    await look(page, 'playground-speech')
  })

  it.skipIf(!speech)('records audio from the microphone', async () => {
    const page = await openForm('Audio')
    await page.getByRole('button', { name: 'Record' }).click()
    const end = page.getByRole('button', { name: 'Stop recording' })
    await end.waitFor()
    await page.waitForTimeout(1_000)
    await end.click()
    await page.getByText('recording.webm').waitFor()
    await page.getByRole('region', { name: 'Waveform' }).waitFor()
    await page.getByRole('button', { name: 'Transcribe' }).click()
    await page.getByRole('heading', { name: 'Transcript' }).waitFor()
    await page.context().close()
  })

  it('shows one field per request parameter for an endpoint without its own form', async () => {
    const page = await openForm('Shout')
    await page.getByLabel('Text').fill('hello')
    await page.getByRole('button', { name: 'Send' }).click()
    await page.locator('p.output').getByText('"text": "HELLO"').waitFor()
    await look(page, 'playground-shout')
  })

  it('asks a caller to contact the operator if the key has no model for a form', async () => {
    const page = await signIn(browser, stack.url, LIMITED_KEY, faults)
    await page.goto(`${stack.url}/console/playground?form=research`)
    await page.getByText('Ask the operator of the service for a model').waitFor()
    await page.goto(`${stack.url}/console/playground?form=chat&model=echo-2`)
    await page.getByRole('combobox', { name: 'Model', exact: true }).waitFor()
    expect(
      await page.getByRole('combobox', { name: 'Model', exact: true }).getByRole('option').allTextContents(),
    ).toEqual(['echo-1'])
    await look(page, 'playground-limited')
  })

  it('logs no unexpected errors and sends no requests to other hosts', () => {
    // The browser logs an error for each failed request. The expected statuses are 400 for an invalid temperature, and 403 for the admin API with
    // a caller's key.
    expect(faults.filter((fault) => !/status of 40[03]/.test(fault))).toEqual([])
  })
})
