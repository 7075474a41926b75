def zeros(rows, columns):
    return [[0.0] * columns for _ in range(rows)]


def identity(size):
    result = zeros(size, size)
    for i in range(size):
        result[i][i] = 1.0
    return result


def transpose(matrix):
    rows = len(matrix)
    columns = len(matrix[0])
    result = zeros(columns, rows)
    for i in range(rows):
        for j in range(columns):
            result[j][i] = matrix[i][j]
    return result


def add(a, b):
    rows = len(a)
    columns = len(a[0])
    result = zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            result[i][j] = a[i][j] + b[i][j]
    return result


def multiply(a, b):
    rows = len(a)
    columns = len(b[0])
    inner = len(b)
    result = zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            total = 0.0
            for k in range(inner):
                total += a[i][k] * b[k][j]
            result[i][j] = total
    return result


def power(matrix, exponent):
    result = identity(len(matrix))
    for _ in range(exponent):
        result = multiply(result, matrix)
    return result


def trace(matrix):
    total = 0.0
    for i in range(len(matrix)):
        total += matrix[i][i]
    return total
