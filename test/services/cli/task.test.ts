import { describe, expect, it } from 'vitest'
import { columnsSchema, type ObjectSchema, type TaskOptions, taskOf } from '#services/cli/batches/task.ts'
import { resultColumns, valuesIn } from '#shared/tables/answers.ts'

const TABLE = { path: 'reviews.csv', format: 'csv', delimiter: ',' } as const
const UNSET: TaskOptions = {
  ...{ model: 'm', promptColumn: undefined, prompt: undefined, embedColumn: undefined, system: undefined },
  ...{ maxTokens: undefined, temperature: undefined, choices: undefined, schema: undefined },
}
const task = (options: Partial<TaskOptions>, isJson = true) =>
  taskOf(TABLE, ['id', 'review'], { ...UNSET, ...options }, isJson)
const ROW = new Map<string, unknown>([
  ['id', 7],
  ['review', 'fine'],
])

describe('the batch requests for table rows', () => {
  it.each([
    ['{review}', 'fine'],
    ['{ id }: {review}', '7: fine'],
    ['{{"a": {review}}}', '{"a": fine}'],
    ['a } b {review}', 'a } b fine'],
  ])('fill the template %s', (prompt, content) => {
    expect(task({ prompt }).bodyOf(ROW)).toMatchObject({ messages: [{ role: 'user', content }] })
  })

  it('are omitted for a row in which each column of the template is empty', () => {
    expect(task({ prompt: 'Classify: {review}' }).bodyOf(new Map([['review', ' ']]))).toBeUndefined()
  })

  it.each([
    ['{"a": 1}', 'no column \'"a": 1\''],
    ['no column', '--prompt must contain a column'],
  ])('cannot be created from the template %s', (prompt, problem) => {
    expect(() => task({ prompt })).toThrow(problem)
  })

  it('contain the text of the column to embed', () => {
    const embed = task({ embedColumn: 'review' })
    const body = { model: 'm', input: 'fine' }
    expect([embed.endpoint, resultColumns(embed.form)[0], embed.bodyOf(ROW)]).toEqual([
      '/v1/embeddings',
      'embedding',
      body,
    ])
  })

  it('contain a JSON schema only if the model supports structured output', () => {
    const options = { prompt: '{review}', choices: ['a', 'b'] }
    const instruction = { role: 'system', content: 'Answer with exactly one of: a, b.' }
    expect(task(options).bodyOf(ROW)).toMatchObject({
      messages: [instruction, {}],
      response_format: { json_schema: { schema: { properties: { answer: { enum: ['a', 'b'] } } } } },
    })
    expect(task(options, false).bodyOf(ROW)).not.toHaveProperty('response_format')
  })
})

describe('the answers for table rows', () => {
  it.each([
    ['{"answer":"Very good"}', 'Very good'],
    ['very good.', 'Very good'],
    ['"Bad"', 'bad'],
    ['good or bad', undefined],
    ['{"answer":1}', undefined],
    ['null', undefined],
    ['**Very good!**...', 'Very good'],
    ['{"answer":{"toString":1}}', undefined],
    [`a${'.'.repeat(300_000)}x`, undefined],
  ])('are checked against the choices: %s', (answer, choice) => {
    const result = task({ prompt: '{review}', choices: ['Very good', 'bad'] }).valuesOf(answer)
    expect(result).toEqual(
      choice === undefined ? { problem: expect.stringContaining('choices') } : { values: [choice] },
    )
  })

  it.each([
    ['{"score":2,"mood":"good"}', ['good', 2]],
    ['```json\n{"mood":"bad","score":0}\n```', ['bad', 0]],
    ['{"mood":"bad"}', undefined],
    ['{"mood":"fair","score":1}', undefined],
    ['[1]', undefined],
    ['good', undefined],
  ])('are checked against the columns: %s', (answer, values) => {
    const schema = columnsSchema(['mood:good|bad', 'score:number'])
    const result = task({ prompt: '{review}', schema }).valuesOf(answer)
    expect(result).toEqual(values ? { values } : { problem: expect.any(String) })
  })

  it('may lack optional fields of a schema', () => {
    const schema = { type: 'object', properties: { a: { type: 'string' }, b: { type: 'array' } }, required: ['a'] }
    const result = task({ prompt: '{review}', schema: schema as unknown as ObjectSchema }).valuesOf('{"a":"x"}')
    expect(result).toEqual({ values: ['x', null] })
  })

  it.each([
    { choices: ['Good', 'bad'], answer: '```json\n{"answer":"good"}\n```' },
    { choices: ['good', 'bad'], answer: 'BAD.' },
    { schema: columnsSchema(['mood', 'score:number']), answer: '```json\n{"score":1,"mood":"x"}\n```' },
    { embedColumn: 'review', answer: '[1,2]' },
    { answer: '{"answer":"text"}' },
  ])(
    'give the same values with the stored metadata of the batch as with the command-line options: %o',
    ({ answer, ...options }) => {
      const { form, valuesOf } = task({ ...options, ...(!options.embedColumn && { prompt: '{review}' }) })
      expect(form.prompt).toEqual(['review'])
      expect(valuesIn(form)(answer)).toEqual(valuesOf(answer))
    },
  )

  it.each([
    [['a', 'b:number', 'a:number'], "has 'a' twice"],
    [['error'], "must not have 'error'"],
    [['a', 'input_tokens:number'], "must not have 'input_tokens'"],
  ])('cannot have duplicate or reserved column names: %s', (columns, problem) => {
    expect(() => columnsSchema(columns)).toThrow(problem)
  })

  it.each(['score:float', ':string', 'a:'])('cannot have a column without a valid type: %s', (column) => {
    expect(() => columnsSchema([column])).toThrow('NAME:TYPE')
  })
})
